"""Logs whose closed segments are in a tier: remote storage, as Kafka's tiered topics have it."""
