"""Builds HTML and SVG pages from values; no module here opens a file or answers a client."""
