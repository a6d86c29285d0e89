"""Messages between the controller and an actor, as bytes.

A message is pickled when it is sent, like every message to a worker. Object references in it stay references: they
travel beside the bytes, where Ray sees them and counts them.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

import ray


@dataclass(frozen=True, slots=True)
class Letter:
    """One message."""

    data: bytes
    references: tuple[Any, ...] = ()
    """The object references in it."""


@dataclass(frozen=True, slots=True)
class Began:
    """The first that is heard of a worker: where it runs."""

    node: str
    pid: int


@dataclass(frozen=True, slots=True)
class Printed:
    """Output of the worker."""

    data: bytes


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The worker's function has returned, or raised an error."""

    error: str | None


Heard = Letter | Began | Printed | WorkerEnded
"""What an actor tells the controller, in order."""


def write(message: object) -> Letter:
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(message)
    return Letter(file.getvalue(), tuple(pickler.references))


def read(letter: Letter) -> object:
    return _Unpickler(letter).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.references: list[Any] = []

    def persistent_id(self, thing: object) -> int | None:
        if not isinstance(thing, ray.ObjectRef):
            return None
        self.references.append(thing)
        return len(self.references) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, letter: Letter) -> None:
        super().__init__(io.BytesIO(letter.data))
        self._references = letter.references

    def persistent_load(self, number: int) -> object:
        return self._references[number]
