"""The last value of each key of a log, found by the scan and merge of a clean, without a rewrite."""
