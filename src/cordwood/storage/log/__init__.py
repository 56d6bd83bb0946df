"""The log of one partition: read and write its segments."""
