"""File formats, a module each, and the names of files."""
