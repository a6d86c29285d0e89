"""The section of a scenario for parallel sizes: over how many devices an instance divides its model."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from tailrace.sim.section import Sourced


class ParallelSection(Sourced):
    """The sizes between which a schedule may choose. The costs of each follow from those of the engine, which hold for
    ``devices_per_instance`` (``sim/parallel_sizes.py``)."""

    sizes: tuple[PositiveInt, ...]
    """Devices of an instance, ascending; ``devices_per_instance`` is one of them."""
    weights_tokens: NonNegativeInt
    """Tokens of KV cache that would fit in the place of the weights of the model."""
    reduce_s: NonNegativeFloat = 0.0
    """Fixed seconds per decode step for the communication between the devices of an instance, with two or more. It is
    part of ``k4``."""
    reduce_row_s: NonNegativeFloat = 0.0
    """Seconds per decode step and running response for communication between two devices; more in proportion to 2 * (n
    - 1) / n for n devices."""
    reduce_token_s: NonNegativeFloat = 0.0
    """The same per prefilled token."""
    start_s: tuple[NonNegativeFloat, ...]
    """Seconds that an instance of each size takes to start."""
    parks: bool = True
    """Whether instances keep their processes, with released memory, while another size is used. If not, they end."""
    parked_tokens: NonNegativeInt = 0
    """Tokens of KV cache that would fit in the place of what a parked process keeps on each of its devices."""

    @model_validator(mode="after")
    def _checked(self) -> ParallelSection:
        for sentence in self._broken():
            raise ValueError(sentence)
        return self

    def _broken(self) -> Iterator[str]:
        if list(self.sizes) != sorted(set(self.sizes)) or not self.sizes:
            yield f"sizes must be ascending, each once, got {list(self.sizes)}"
        if len(self.start_s) != len(self.sizes):
            yield f"start_s has {len(self.start_s)} values, but there are {len(self.sizes)} sizes"

    @property
    def kept_tokens(self) -> int:
        """Tokens of KV cache that each device lacks, because the processes of the other sizes are parked on it."""
        return self.parked_tokens * (len(self.sizes) - 1) * self.parks

    def start_of(self, size: int) -> float:
        return self.start_s[self.sizes.index(size)]


def spread(size: int) -> float:
    """Return how much each of so many devices sends to add up their parts, in units of the sum (a ring)."""
    return 2.0 * (size - 1) / size
