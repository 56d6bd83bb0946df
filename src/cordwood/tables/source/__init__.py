"""Read a log as a Spark DataFrame, directly from its files: Spark's Python data source, for batches and streams.

Only `batch`, `stream` and `datasource` import Spark. The other modules plan and read with plain values and Arrow.
"""
