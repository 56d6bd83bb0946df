"""One partition: its segments, read and written."""
