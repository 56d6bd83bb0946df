"""Cleans partitions: Kafka's rules (rules), the work on one partition (engine), the proof of a clean (proof)."""
