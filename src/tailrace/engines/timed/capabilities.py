"""What the timed engine can do."""

from __future__ import annotations

from tailrace.engines.contract import Capabilities

CAPABILITIES = Capabilities(
    name="timed",
    # A made-up token is a function of (seed, response, token position), bit by bit.
    has_keyed_randomness=True,
    has_exact_interrupt=True,
    streams_progress=True,
    has_deterministic_mode=True,
    releases_memory=True,
    uses_weights=False,
    has_kv_cache=False,
    # There is no model to divide: an instance of any size takes as long as the costs of its size say.
    max_parallel_size=8,
)
