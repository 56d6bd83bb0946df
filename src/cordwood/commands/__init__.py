"""The commands, one module each, readable from top to bottom."""
