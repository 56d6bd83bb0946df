"""Cleans one partition, wherever it is called: on Spark, in a thread, in a test. Nothing here starts a task."""
