"""What a topic's disk will be, as values: what is written, at which scale it is simulated, what came of it."""
