"""Checkpoints of a training worker that does not see the controller's files (`ray.checkpoints = "gathered"`).

The worker writes a checkpoint to its own disk; ranks of one training are on one node and write into one folder. The
first rank then copies the files to the controller's node and removes the folder, and only after that does the
controller hear that the checkpoint is saved. A worker that was killed leaves files behind. The first rank removes them
when it starts: that is before the ranks meet, so no other rank has begun to write. A worker that begins from a
checkpoint gets its files in the other direction. Copies go through small Ray tasks on the controller's node, one piece
of a file at a time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tailrace.workers.link import Link
from tailrace.workers.messages import Save, Saved, SaveFailed, TrainingInit, TrainingReady

PIECE_BYTES = 64 * 1024 * 1024


class Courier:
    """Copies folders between this node and the one with the id ``node``."""

    def __init__(self, node: str, piece_bytes: int = PIECE_BYTES) -> None:
        self.node = node
        self._piece_bytes = piece_bytes
        self._place = NodeAffinitySchedulingStrategy(node_id=node, soft=False)

    def fetch(self, there: Path, here: Path) -> None:
        for name, size in self._do(_files, there):
            path = here / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for start in range(0, size, self._piece_bytes):
                    file.write(self._do(_read, there / name, start, self._piece_bytes))

    def deliver(self, here: Path, there: Path) -> None:
        """Copy a folder there; when this returns, it is on disk."""
        for name, size in _list_files(here):
            self._do(_write, there / name, 0, b"")  # a file may be empty
            with (here / name).open("rb") as file:
                for start in range(0, size, self._piece_bytes):
                    self._do(_write, there / name, start, file.read(self._piece_bytes))
        self._do(_flush, there)

    def _do(self, function: Any, *arguments: object) -> Any:
        try:
            return ray.get(function.options(scheduling_strategy=self._place).remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            raise OSError(f"on the controller's node: {error.cause}") from error


class GatheringLink:
    """The link of a training worker, whose checkpoints go to the controller's node."""

    def __init__(self, link: Link, courier: Courier, init: TrainingInit) -> None:
        self._link, self._courier, self._rank = link, courier, init.rank
        self._folder = _folder(courier.node, init)
        if self._rank == 0:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._start = self._folder.with_name(f"{self._folder.name}-start-{self._rank}")
        shutil.rmtree(self._start, ignore_errors=True)  # of a worker that was killed while it loaded
        self._asked: Save | None = None

    def receive(self, timeout: float | None = None) -> object | None:
        message = self._link.receive(timeout)
        if not isinstance(message, Save):
            return message
        self._asked = message
        return replace(message, directory=self._own(message.directory))

    def send(self, message: object) -> None:
        if isinstance(message, Saved) and self._asked is not None and self._rank == 0:
            message = self._deliver(message, self._asked)
        if isinstance(message, TrainingReady):
            shutil.rmtree(self._start, ignore_errors=True)
        self._link.send(message)

    def fetched(self, init: TrainingInit) -> TrainingInit:
        """The same with checkpoints of this disk."""
        models = []
        for model in init.models:
            if model.checkpoint is not None:
                own = self._start / model.name
                self._courier.fetch(model.checkpoint, own)
                model = replace(model, checkpoint=own)
            models.append(model)
        return replace(init, models=tuple(models))

    def _own(self, directory: Path) -> Path:
        """Where this node writes a checkpoint."""
        return self._folder / directory.name

    def _deliver(self, saved: Saved, asked: Save) -> Saved | SaveFailed:
        own = self._own(asked.directory)
        try:
            self._courier.deliver(own, asked.directory)
        except (OSError, ray.exceptions.RayError) as error:
            return SaveFailed(model=saved.model, version=saved.version, reason=str(error))
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        print(f"checkpoint {asked.directory.name} was copied to the controller's node", flush=True)
        return saved


def _folder(node: str, init: TrainingInit) -> Path:
    """The folder for checkpoints on this node: the same for all ranks of a run, and of no other run. A name of a weight
    channel belongs to one run directory of the controller's node."""
    names = " ".join([node, *(model.channel_name for model in init.models)])
    return Path(tempfile.gettempdir()) / f"tailrace-checkpoint-{hashlib.sha256(names.encode()).hexdigest()[:16]}"


def _list_files(folder: Path) -> list[tuple[str, int]]:
    return [
        (str(path.relative_to(folder)), path.stat().st_size) for path in sorted(folder.rglob("*")) if path.is_file()
    ]


@ray.remote(num_cpus=0, max_retries=0)
def _files(folder: Path) -> list[tuple[str, int]]:
    return _list_files(folder)


@ray.remote(num_cpus=0, max_retries=0)
def _read(path: Path, start: int, num_bytes: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(num_bytes)


@ray.remote(num_cpus=0, max_retries=0)
def _write(path: Path, start: int, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if start else "wb") as file:
        file.seek(start)
        file.write(data)


@ray.remote(num_cpus=0, max_retries=0)
def _flush(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
