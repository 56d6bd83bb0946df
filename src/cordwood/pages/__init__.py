"""Pages in HTML and SVG, made from values; nothing here opens a file or answers a client."""
