"""A small Ray cluster on this machine, for tests. It is of its own: `ray stop` would end everybody's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_HEAD = """
import sys
from ray.cluster_utils import Cluster
small = dict(num_cpus=3, object_store_memory=150_000_000)
cluster = Cluster(initialize_head=True, head_node_args=dict(include_dashboard=False, **small))
cluster.add_node(resources={"second": 1}, **small)
print("address:", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
"""Two nodes with a Ray of their own each, on this machine. The second has a resource of that name."""
_QUIET = {"RAY_AUTH_MODE": "disabled"}
"""Without it, Ray writes a token into the user's home directory."""


@contextmanager
def small_cluster() -> Iterator[str]:
    """The address of a cluster that lives until the context is closed, and no longer than this process."""
    os.environ.update(_QUIET)
    head = subprocess.Popen(
        [sys.executable, "-c", _HEAD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert head.stdin is not None
    assert head.stdout is not None
    try:
        lines = (line.partition("address: ") for line in head.stdout)
        address = next((after.strip() for _, found, after in lines if found), "")
        assert address, "Ray did not start"
        yield address
    finally:
        head.stdin.close()
        try:
            head.wait(timeout=60)
        finally:
            head.kill()
            head.wait()
            head.stdout.close()


def actor(output: Path, name: str) -> psutil.Process:
    """The process of the newest actor with this name, from its log."""
    return psutil.Process(_pids(output / "logs" / f"{name}.log")[-1])


def actors(output: Path) -> list[psutil.Process]:
    """All processes that were actors of the run and still live."""
    pids = [pid for log in (output / "logs").glob("*.log") for pid in _pids(log)]
    return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]


def _pids(log: Path) -> list[int]:
    text = log.read_text(errors="replace") if log.exists() else ""
    return [int(pid) for pid in re.findall(r"runs on node \S+ as process (\d+)", text)]
