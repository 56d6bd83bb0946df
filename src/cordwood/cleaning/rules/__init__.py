"""Decide which records a clean keeps and drops: pure functions over columns, without I/O and without Spark."""
