"""Parts of a version, through a real channel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tailrace.core.ids import Version
from tailrace.weights.channel import CorruptWeights
from tailrace.weights.mapped_file import MappedFile
from tailrace.weights.plan import Slice
from tailrace.weights.puller import Puller
from tailrace.weights.sharding import Heads, Holding, Scheme, holdings
from tailrace.weights.shared_memory import WeightReader, WeightWriter, layout_of
from weights.models import are_equal, parameters, values

HEADS = Heads(num_query=4, num_kv=2, size=2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_each_engine_gets_its_own_part_of_every_parameter(tmp_path: Path, num_workers: int, dtype: str) -> None:
    model = parameters(HEADS, dtype=dtype)
    sent = values(model)
    WeightWriter.create(tmp_path / "w", layout_of(sent.items())).publish(Version(4), sent.items())
    for engine in holdings(model, HEADS, Scheme(num_workers=num_workers, is_fused=True), side="engine"):
        version, pulled = Puller.open(tmp_path / "w", engine).pull(Version(0))
        assert version == 4
        assert len(pulled) == len(engine.pieces)
        for piece in engine.pieces:
            part = sent[piece.parameter][tuple(slice(start, stop) for start, stop in piece.box)]
            assert are_equal(pulled[piece.parameter], part.contiguous())


def test_an_engine_that_keeps_nothing_fetches_nothing(tmp_path: Path) -> None:
    sent = values(parameters(HEADS))
    WeightWriter.create(tmp_path / "w", layout_of(sent.items())).publish(Version(4), sent.items())
    assert Puller.open(tmp_path / "w", Holding(worker="replay")).pull(Version(4)) == (4, {})


def test_changed_bytes_of_a_tensor_that_is_fetched_in_part_are_noticed(tmp_path: Path) -> None:
    model = parameters(HEADS)
    sent = values(model)
    WeightWriter.create(tmp_path / "w", layout_of(sent.items())).publish(Version(0), sent.items())
    [first, _] = holdings(model, HEADS, Scheme(num_workers=2), side="engine")
    MappedFile(tmp_path / "w", writable=True).tensor_bytes(1, 0)[3] ^= 1
    with pytest.raises(CorruptWeights, match="did not match"):
        Puller.open(tmp_path / "w", first).pull(Version(0))


def test_a_part_is_a_copy(tmp_path: Path) -> None:
    sent = {"a": torch.arange(12.0).view(3, 4)}
    writer = WeightWriter.create(tmp_path / "w", layout_of(sent.items()))
    writer.publish(Version(0), sent.items())
    reader = WeightReader.open(tmp_path / "w")
    wanted = Slice("a", ((1, 3), (1, 2)))
    _, found = reader.fetch(Version(0), [wanted])
    for version in (1, 2):
        writer.publish(Version(version), [("a", torch.zeros(3, 4))])
    assert found[wanted].tolist() == [[5.0], [9.0]]
