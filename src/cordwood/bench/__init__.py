"""Benchmarks: logs of a known shape, what Kafka and we make of them, and how long that takes."""
