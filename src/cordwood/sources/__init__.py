"""A log as a Spark DataFrame, read where its files are: Spark's Python data source, for batches and streams.

Only `batch`, `stream` and `datasource` know Spark. What they plan and read is plain values and Arrow.
"""
