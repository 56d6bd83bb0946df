"""Clean one partition: on Spark, in a thread or in a test. Nothing here starts a task."""
