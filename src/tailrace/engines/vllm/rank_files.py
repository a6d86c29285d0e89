"""Hands weights to ranks in other processes: one file per rank, in memory if they fit there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from tailrace.weights.slots import channel_files
from tailrace.weights.slots.leftovers import held_folder, remove_leftovers

_KIND = "ranks"
_HEADER_BYTES = 1024
"""Bytes of a tensor's entry in the header of a file: more than it takes."""


def _print(line: str) -> None:
    print(line, flush=True)


@contextmanager
def rank_files(
    weights: Sequence[Mapping[str, Tensor]],
    *,
    among: Sequence[Path] | None = None,
    free_bytes: Callable[[Path], int] = channel_files.free_bytes,
    say: Callable[[str], None] = _print,
) -> Iterator[list[str]]:
    """Write each rank's tensors to a file. The files are removed at the end.

    Files that killed processes left are removed first. If there is no room in memory, the files are written to disk and
    ``say`` tells it. Raises ``NoRoom``.
    """
    places = list(among or channel_files.directories())
    remove_leftovers(places)
    num_bytes = sum(tensor.nbytes + _HEADER_BYTES for own in weights for tensor in own.values())
    chosen = channel_files.choose_directory(num_bytes, among=places, free_bytes=free_bytes)
    if chosen.note is not None:
        say(chosen.note)
    with held_folder(_KIND, chosen.path) as folder:
        paths = [folder / f"{rank}.safetensors" for rank in range(len(weights))]
        for path, own in zip(paths, weights, strict=True):
            save_file({name: tensor.cpu().contiguous() for name, tensor in own.items()}, path)
        yield [str(path) for path in paths]
