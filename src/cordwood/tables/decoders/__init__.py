"""Decode keys and values: bytes in, Arrow columns out."""
