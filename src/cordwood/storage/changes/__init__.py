"""What changes a directory: recovery, copies, swaps, backups and undo."""
