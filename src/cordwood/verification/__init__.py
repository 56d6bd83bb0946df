"""Proves that a clean kept its promises, with nothing of `cleaning` and `engine`."""
