"""Files and directories of a Kafka log, as values: formats < log < node < changes, check."""
