"""Starts real writer processes and kills them, and pulls meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from tailrace.core.ids import Version
from tailrace.weights.channel import CorruptWeights, VersionNotPublished, WriterLost
from tailrace.weights.slots.two_slots import WeightReader

TESTS = Path(__file__).parents[1]
GIVE_UP_S = 30.0


def with_tests_on_path() -> dict[str, str]:
    """An environment in which a process can import the modules of the tests, and the same tailrace as this one."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}


@contextlib.contextmanager
def endless_writer(kind: str, path: Path, first: int) -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).with_name("endless_writer.py")
    command = [sys.executable, str(script), kind, str(path), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=with_tests_on_path()) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "published\n"
            yield process
        finally:
            process.kill()


class Pulls(NamedTuple):
    num_whole: int
    num_corrupt: int
    """Pulls that found memory of a writer that was just being removed."""


def is_whole(version: int, weights: dict[str, Tensor]) -> bool:
    """Whether all elements are those of the version."""
    return all(bool((tensor == version % 1000).all()) for tensor in weights.values())


def pull_until_lost(reader: WeightReader, process: subprocess.Popen[str], rng: random.Random) -> Pulls:
    """Pull as fast as possible, kill the writer at a random moment, and pull until the reader says that it is lost."""
    num_whole = num_corrupt = 0
    kill_at = time.monotonic() + rng.uniform(0.0, 0.05)
    while time.monotonic() < kill_at + GIVE_UP_S:
        if process.poll() is None and time.monotonic() >= kill_at:
            process.kill()  # does not wait: the next pulls meet a process that is being removed
        try:
            version, weights = reader.fetch_whole(Version(0))
        except WriterLost:
            return Pulls(num_whole, num_corrupt)
        except CorruptWeights:
            num_corrupt += 1
        except VersionNotPublished:
            pass
        else:
            assert is_whole(version, weights), f"version {version} is mixed"
            num_whole += 1
    raise AssertionError("the reader did not notice that its writer is dead")
