"""What keys and values mean: bytes in, Arrow columns out."""
