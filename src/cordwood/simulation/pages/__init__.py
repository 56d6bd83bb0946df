"""The pages of a simulation and of a what-if."""
