"""Recovery of a log as in a broker's start: replays producers and rebuilds segments, in place or into a copy."""
