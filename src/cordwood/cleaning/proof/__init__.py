"""Proves that a clean kept its promises. Imports nothing from `cleaning` or `engine`."""
