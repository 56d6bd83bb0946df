"""Replays months of live logs in seconds: runs `live` on a file system in memory with a clock moved by hand."""
