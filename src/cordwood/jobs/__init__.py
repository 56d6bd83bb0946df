"""The jobs of a command: how work is divided into tasks, whatever runs them."""
