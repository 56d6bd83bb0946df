"""Proves that a clean kept its promises. Imports nothing from `rules` or `engine`."""
