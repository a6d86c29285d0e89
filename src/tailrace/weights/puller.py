"""One engine's side of a pull: it fetches the slices its layout needs, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from tailrace.core.ids import Version
from tailrace.weights.channel import Pulled
from tailrace.weights.converter import gather
from tailrace.weights.plan import Links, plan
from tailrace.weights.sharding import Holding, whole
from tailrace.weights.shared_memory import WeightReader

PARAMETER_SERVER = "parameter server"
"""The replica on this node: every engine of a node pulls from the one channel file."""


class Puller:
    def __init__(self, reader: WeightReader, engine: Holding) -> None:
        self._reader, self._engine = reader, engine
        parameters = reader.parameters()
        transfers = plan(parameters, [whole(parameters, PARAMETER_SERVER)], [engine], Links())
        self._slices = [transfer.slice for transfer in transfers]

    @classmethod
    def open(cls, path: Path, engine: Holding) -> Self:
        return cls(WeightReader.open(path), engine)

    def pull(self, minimum_version: Version) -> Pulled:
        """The newest version: of each parameter that the engine keeps, the part it keeps."""
        version, slices = self._reader.fetch(minimum_version, self._slices)
        weights = {piece.parameter: tensor for piece, tensor in gather(self._engine, slices)}
        return Pulled(version, weights)
