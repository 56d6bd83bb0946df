"""The jobs of a command: divide work into tasks, independent of the engine that runs them."""
