"""Looks for torn versions, and measures whether a push waits for pulls. One million parameters, real processes.

    python benchmarks/weights.py --json benchmarks/results/weights.json

* pushes, alone:    one process pushes version after version, nobody pulls
* pushes, busy:     one process pushes, and others copy their own memory as fast as they can
* pushes, pulled:   one process pushes, and as many others pull as fast as they can
* pusher killed:    the pusher gets SIGKILL, again and again, at a random moment or, every second time, in the middle of
                    a push; a new one continues in the same channel
* puller killed:    a puller gets SIGKILL at a random moment, again and again, while versions are pushed

The version determines every element, and each pull is compared element by element: a mixture of two versions, or a
wrong byte, counts as torn. Latencies are of whole pushes, from the call to its return.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import multiprocessing as mp
import os
import platform
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.weights.channel import CorruptWeights, VersionNotPublished
from tailrace.weights.slots.channel_files import MEMORY_DIRECTORY
from tailrace.weights.slots.mapped_file import MappedFile
from tailrace.weights.slots.shared_memory import create, open_reader
from tailrace.weights.slots.two_slots import WeightWriter, layout_of

SHAPES = {"embedding": (500, 512), "norm": (512,), **{f"layer.{i}": (181, 512) for i in range(8)}, "scale": (2112,)}
NUM_PARAMETERS = sum(torch.Size(shape).numel() for shape in SHAPES.values())
VALUES = 1 << 20
"""Integers up to twice this are exact in fp32."""
BASE = {name: (torch.arange(torch.Size(shape).numel()) % VALUES).float().view(shape) for name, shape in SHAPES.items()}


def parameters(version: int) -> dict[str, Tensor]:
    return {name: base + version % VALUES for name, base in BASE.items()}


def is_whole(version: int, weights: dict[str, Tensor]) -> bool:
    return all(torch.equal(weights[name], expected) for name, expected in parameters(version).items())


def push(path: Path, ready: Semaphore, stop: Any, answers: SimpleQueue[Any]) -> None:
    torch.set_num_threads(1)
    ready.release()
    file = MappedFile(path, writable=True)
    newest, writer = file.latest(), WeightWriter(file)
    version, seconds = 0 if newest is None else newest.version + 1, []
    while not stop.value:
        weights = parameters(version)
        start = time.monotonic()
        writer.publish(Version(version), weights.items())
        seconds.append(time.monotonic() - start)
        version += 1
    answers.put({"push_s": seconds})


def pull(path: Path, ready: Semaphore, stop: Any, answers: SimpleQueue[Any]) -> None:
    torch.set_num_threads(1)
    ready.release()
    reader, found, newest = open_reader(path), {"pulls": 0, "torn": 0, "refused": 0, "went_back": 0}, -1
    while not stop.value:
        try:
            version, weights = reader.fetch_whole(Version(0))
        except VersionNotPublished:
            continue
        except CorruptWeights:
            found["refused"] += 1
            continue
        found["pulls"] += 1
        found["torn"] += not is_whole(version, weights)
        found["went_back"] += version < newest
        newest = version
    answers.put(found)


def copy(path: Path, ready: Semaphore, stop: Any, answers: SimpleQueue[Any]) -> None:
    torch.set_num_threads(1)
    ready.release()
    version, count = 0, 0
    while not stop.value:
        count += is_whole(version, {name: tensor.clone() for name, tensor in parameters(version).items()})
    answers.put({"copies": count})


class Stage:
    """A channel and the processes that use it."""

    def __init__(self, path: Path) -> None:
        self.path, self.context = path, mp.get_context("forkserver")
        self.ready = self.context.Semaphore(0)
        # Without a lock: a process that is killed while it holds one would stop all others for ever.
        self.stop = self.context.RawValue(ctypes.c_bool, False)
        self.answers = self.context.SimpleQueue()
        self.processes: list[Any] = []

    def start(self, work: Any, count: int = 1) -> Any:
        for _ in range(count):
            parts = (self.path, self.ready, self.stop, self.answers)
            self.processes.append(self.context.Process(target=work, args=parts, daemon=True))
            self.processes[-1].start()
        for _ in range(count):
            self.ready.acquire()
        return self.processes[-1]

    def kill(self, process: Any) -> None:
        process.kill()
        process.join()
        self.processes.remove(process)

    def finish(self) -> dict[str, Any]:
        """End all processes and add up what they found."""
        self.stop.value = True
        total: dict[str, Any] = {}
        for _ in self.processes:
            for name, value in self.answers.get().items():
                total[name] = total[name] + value if name in total else value
        for process in self.processes:
            process.join()
        return total


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    directory = MEMORY_DIRECTORY if MEMORY_DIRECTORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=directory) as folder:
        path = Path(folder) / "weights"
        create(path, layout_of(parameters(0).items()))
        yield Stage(path)


def pushes(seconds: float, beside: Any, count: int) -> dict[str, Any]:
    with stage() as on:
        on.start(push)
        if beside is not None:
            on.start(beside, count)
        time.sleep(seconds)
        return summary(on.finish())


def summary(found: dict[str, Any]) -> dict[str, Any]:
    seconds = sorted(found.pop("push_s"))
    in_ms = {
        "p50": statistics.median(seconds),
        "p99": seconds[int(0.99 * (len(seconds) - 1))],
        "max": seconds[-1],
    }
    return {"pushes": len(seconds), "push_ms": {name: round(1e3 * s, 2) for name, s in in_ms.items()}, **found}


def is_half_way(file: MappedFile) -> bool:
    newest = file.latest()
    return newest is None or file.begun > newest.generation


def stop_half_way(pid: int, file: MappedFile, rng: random.Random) -> None:
    """Stop the pusher in the middle of a push, however slow or fast the machine is."""
    for _ in range(1000):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.002)  # the signal takes effect a little after the call
        if is_half_way(file):
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(rng.uniform(0.0, 0.01))


def pusher_killed(times: int, pullers: int, rng: random.Random) -> dict[str, Any]:
    num_half_way = num_unreadable = 0
    with stage() as on:
        WeightWriter(MappedFile(on.path, writable=True)).publish(Version(0), parameters(0).items())
        on.start(pull, pullers)
        file, reader = MappedFile(on.path, writable=False), open_reader(on.path)
        for kill in range(times):
            process, generation = on.start(push), file.begun
            while file.begun == generation and process.is_alive():
                time.sleep(0.0005)
            time.sleep(rng.uniform(0.0, 0.02))
            if kill % 2:
                stop_half_way(process.pid, file, rng)
            on.kill(process)
            num_half_way += is_half_way(file)
            newest = file.latest()
            version, weights = reader.fetch_whole(Version(0))
            num_unreadable += newest is None or version != newest.version or not is_whole(version, weights)
        return {"kills": times, "half_way": num_half_way, "old_version_not_readable": num_unreadable, **on.finish()}


def puller_killed(times: int, pullers: int, rng: random.Random) -> dict[str, Any]:
    with stage() as on:
        on.start(push)
        on.start(pull, pullers - 1)
        for _ in range(times):
            process = on.start(pull)
            time.sleep(rng.uniform(0.02, 0.1))
            on.kill(process)
        return {"kills": times, **summary(on.finish())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--seconds", type=float, default=60.0, help="of pushes under continuous pulls")
    parser.add_argument("--pullers", type=int, default=3)
    parser.add_argument("--kills", type=int, default=200)
    options = parser.parse_args()
    mp.set_forkserver_preload(["tailrace.weights.slots.shared_memory"])  # torch is loaded once, not by every process
    rng, brief = random.Random(0), options.seconds / 4
    result = {
        "parameters": NUM_PARAMETERS,
        "pullers": options.pullers,
        "pushes, alone": pushes(brief, None, 0),
        "pushes, busy": pushes(brief, copy, options.pullers),
        "pushes, pulled": pushes(options.seconds, pull, options.pullers),
        "pusher killed": pusher_killed(options.kills, options.pullers, rng),
        "puller killed": puller_killed(options.kills, options.pullers, rng),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }
    for name, row in result.items():
        print(f"{name:16} {row}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
