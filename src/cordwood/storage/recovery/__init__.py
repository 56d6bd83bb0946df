"""Recovery of a log as a broker loads it: producers replayed, segments rebuilt, in place or into a copy."""
