"""Decoding several tokens at a time over a paged KV cache."""
