"""What the native engine can do. Importing this file does not import torch."""

from __future__ import annotations

from tailrace.engines.contract import Capabilities

CAPABILITIES = Capabilities(
    name="native",
    has_keyed_randomness=True,
    has_exact_interrupt=True,
    streams_progress=True,
    has_deterministic_mode=True,
    releases_memory=True,
    uses_weights=True,
    has_kv_cache=True,
)
