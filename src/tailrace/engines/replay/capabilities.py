"""What the replay engine can do."""

from __future__ import annotations

from tailrace.engines.contract import Capabilities

CAPABILITIES = Capabilities(
    name="replay",
    # A saved response is the same whatever else is replayed, and continues where it was interrupted.
    has_keyed_randomness=True,
    has_exact_interrupt=True,
    streams_progress=True,
    has_deterministic_mode=True,
    releases_memory=True,
    uses_weights=False,
    has_kv_cache=False,
    # Those that the saved run has kept.
    returns_routing=True,
)
