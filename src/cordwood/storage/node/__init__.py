"""A broker's log directories together."""
