"""A damaged checkpoint is recognised from its files alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from core.world import World
from observe.runs import write_checkpoint, write_journal
from tailrace.core.schedule import Schedule
from tailrace.store.checkpoint_files import damage
from tailrace.store.checksums import write_checksums

SCHEDULE = Schedule(train_source="train", batch_size=1, group_size=2, max_steps=1)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    world = World(SCHEDULE, random.Random(0))
    world.run()
    run = write_journal(tmp_path / "run", world.entries)
    return write_checkpoint(run, SCHEDULE, world.entries, 1)


def test_a_whole_checkpoint_is_whole(checkpoint: Path) -> None:
    assert damage(checkpoint) is None


def test_a_checkpoint_of_several_ranks_is_whole_if_all_their_files_are_there(checkpoint: Path) -> None:
    for path in checkpoint.glob("*.safetensors"):
        path.unlink()
    names = [".metadata", "__0_0.distcp", "__1_0.distcp"]
    for name in names:
        (checkpoint / name).write_bytes(b"tensors")
    write_checksums(checkpoint)
    assert damage(checkpoint) is None
    for name in names:
        (checkpoint / name).rename(checkpoint / "away")
        assert damage(checkpoint) is not None, name
        (checkpoint / "away").rename(checkpoint / name)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def pad(path: Path) -> None:
    path.write_text(path.read_text() + " ")


def scribble(path: Path) -> None:
    path.write_bytes(b"\xff" * 40)


@pytest.mark.parametrize(
    ("name", "harm", "words"),
    [
        ("model.safetensors", cut, "its header promises"),
        ("model.safetensors", scribble, "does not begin like a safetensors file"),
        ("model.safetensors", flip, "is not what was written: its checksum differs"),
        ("run_state.json", pad, "is not what was written: its checksum differs"),
        ("checksums.json", scribble, "cannot be read"),
        ("model.safetensors", lambda path: path.write_bytes(b"ab"), "damaged header"),
        ("model.safetensors", Path.unlink, "has no weights"),
        ("trainer_state.safetensors", cut, "trainer_state.safetensors"),
        ("run_state.json", cut, "cannot be read"),
        ("run_state.json", Path.unlink, "is missing"),
        ("run_state.json", lambda path: path.write_text("{}"), "lacks coordinator"),
        ("trainer_state.json", scribble, "cannot be read"),
    ],
)
def test_damage_is_named_with_its_file(checkpoint: Path, name: str, harm: Callable[[Path], object], words: str) -> None:
    harm(checkpoint / name)
    found = damage(checkpoint)
    assert found is not None
    assert words in found
    assert found.startswith("step_1")
