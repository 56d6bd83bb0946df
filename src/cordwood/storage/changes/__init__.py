"""Changes of a directory: copies, swaps, backups and undo."""
