"""The weight channel of one machine: two slots in a file in memory (``two_slots.py``, ``mapped_file.py``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tailrace.weights.sharding.layout import WeightLayout
from tailrace.weights.slots import channel_files
from tailrace.weights.slots.mapped_file import MappedFile, file_bytes
from tailrace.weights.slots.two_slots import WeightReader, WeightWriter


def create(path: Path, layout: WeightLayout) -> WeightWriter:
    """Make a new, empty channel. A channel that has this path is replaced."""
    return WeightWriter(MappedFile.create(path, layout))


def create_for(name: str, layout: WeightLayout, say: Callable[[str], None]) -> WeightWriter:
    """Make a new, empty channel for the run with this name: in memory if it fits there, else on disk, with a line that
    says so. Raises ``NoRoom``."""
    chosen = channel_files.prepare_path(name, file_bytes(layout))
    if chosen.note is not None:
        say(chosen.note)
    return create(chosen.path, layout)


def open_reader(path: Path) -> WeightReader:
    return WeightReader(MappedFile(path, writable=False))
