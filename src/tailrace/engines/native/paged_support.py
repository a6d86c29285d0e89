"""Why the native engine cannot decode with pages, as far as settings and model tell. Importing it imports no torch."""

from __future__ import annotations


def known_obstacle(head_dim: int, *, deterministic: bool, is_cuda: bool) -> str | None:
    """None if neither the settings nor the model stand in the way. Triton and the card are not looked at."""
    if deterministic:
        return "deterministic mode computes one token at a time"
    if is_cuda and (head_dim & (head_dim - 1) or head_dim < 16):
        return f"heads have {head_dim} dimensions, Triton kernels need a power of two from 16 on"
    return None


def plain_line(obstacle: str) -> str:
    """Line for a log: the engine decodes without pages although it is on a GPU."""
    return f"decoding one token at a time (plain): {obstacle}"
