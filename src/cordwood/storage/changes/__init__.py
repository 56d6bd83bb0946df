"""What changes a directory: copies, swaps, backups and undo."""
