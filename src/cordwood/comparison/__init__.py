"""Compares the replicas of a partition."""
