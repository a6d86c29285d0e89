"""Which layers of a model stay on the device: as evenly spread as possible.

There are two buffers, so a copy can begin at most two offloaded layers ahead. If offloaded layers stood side by side,
the copies would rest while the resident layers compute, and then each layer would wait for its copy. Evenly spread,
every copy has the same number of layers to hide under, give or take one.
``tests/offload/test_turns.py`` compares all ways to choose the layers: none makes a pass shorter.
"""

from __future__ import annotations


def resident_places(num_layers: int, num_resident: int) -> tuple[bool, ...]:
    """For each layer, whether it stays on the device."""
    if not 0 <= num_resident <= num_layers:
        raise ValueError(f"num_resident must be from 0 to {num_layers}, got {num_resident}")
    num_offloaded = num_layers - num_resident
    return tuple(
        (place + 1) * num_offloaded // num_layers == place * num_offloaded // num_layers for place in range(num_layers)
    )
