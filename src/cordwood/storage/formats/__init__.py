"""File formats, one module each, and file names."""
