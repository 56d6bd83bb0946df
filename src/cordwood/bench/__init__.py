"""Benchmarks: logs of a known shape, cleaned and read by Kafka and by Cordwood, with the times of both."""
