"""The commands, a module each, to be read from top to bottom."""
