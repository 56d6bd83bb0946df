"""What a clean keeps and what it drops: decisions over columns, without I/O and without Spark."""
