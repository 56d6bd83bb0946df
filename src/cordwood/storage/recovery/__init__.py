"""What a broker does when it loads a log: producers replayed, segments rebuilt, in place or into a copy."""
