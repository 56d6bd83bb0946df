"""Estimates a topic's disk use, as values: the workload, the scale of its simulation, and the outcome."""
