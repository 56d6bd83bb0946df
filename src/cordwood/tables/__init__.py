"""The last value of each key of a log: by the same scans and merges as a clean, of which nothing is rewritten."""
