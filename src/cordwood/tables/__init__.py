"""The last value of each key of a log: by the scans and merges of a clean, without a rewrite."""
