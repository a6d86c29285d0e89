"""Settings that must be made before anything is imported, and a Ray cluster for the tests that need one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

if not Path("/dev/nvidiactl").exists():
    # Without a GPU, Triton kernels run in Triton's interpreter. Triton looks at this when it is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")


# An error in a display, in metrics or in a report does not end a run, but it does fail a test, also of a started run.
os.environ.setdefault("TAILRACE_RAISE_OBSERVER_ERRORS", "1")


@pytest.fixture(scope="module")
def ray_on_this_machine() -> Iterator[None]:
    """A small Ray that lives as long as the tests of one file."""
    from end_to_end.ray_cluster import small_cluster
    from tailrace.config.ray_settings import RaySettings
    from tailrace.runtime.ray.cluster import connected

    # In a process of its own: Ray does not wait for the processes that it has started, which is a warning here.
    with small_cluster() as address, connected(RaySettings(address=address)):
        yield
