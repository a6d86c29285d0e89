"""Where the workers of a run are: processes of this machine, or actors of a Ray cluster (`runtime`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tailrace.config.load import SettingsError
from tailrace.config.settings import Settings
from tailrace.runtime.mps import Sharing, gpu_sharing
from tailrace.runtime.process import ProcessLauncher
from tailrace.runtime.worker import Launcher
from tailrace.workers.sample_transfer import Batch, SentSamples


def _as_they_are(samples: SentSamples) -> Batch:
    return samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    launch: Launcher
    """Starts the workers."""
    sharing: Sharing
    """How they share a GPU."""
    pack: Callable[[SentSamples], Batch] = _as_they_are
    """Makes the batch that a trainer is sent, if it does not see the payload store."""


def check_runtime(settings: Settings) -> None:
    """Raise ``SettingsError`` if the package of the runtime is missing. Imports nothing."""
    if settings.runtime == "ray" and importlib.util.find_spec("ray") is None:
        raise SettingsError("runtime 'ray' needs the package ray: pip install 'tailrace[ray]'")


@contextmanager
def open_place(settings: Settings, *, logs: Path, trains: bool, say: Callable[[str], None]) -> Iterator[Place]:
    """Make ready what the workers need, while the context is open. ``trains``: whether the run trains."""
    if settings.runtime == "ray":
        from tailrace.runtime.ray.place import open_ray  # Ray is imported only by runs that use it

        with open_ray(settings, logs=logs, trains=trains, say=say) as place:
            yield place
        return
    with gpu_sharing(settings, trains=trains, say=say) as sharing:
        yield Place(launch=ProcessLauncher(logs), sharing=sharing)
