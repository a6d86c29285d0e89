"""Metrics in other people's dashboards. A sink takes the rows of ``metrics.jsonl`` as they come.

Each adapter is one file that imports its package at the top; a package that is not installed is a sentence naming the
extra, before any work starts. A sink that fails later (its server is away, its disk is full) is closed with a sentence
and the run goes on: the journal and ``metrics.jsonl`` hold every row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tailrace.observe.metrics import Row


class Sink(Protocol):
    def write(self, row: Row) -> None:
        """One row; its ``step`` never goes back."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What a dashboard is told about a run."""

    directory: Path
    project: str
    name: str
    config: Mapping[str, Any]


class Sinks:
    """All sinks of a run, as one."""

    def __init__(self, sinks: Mapping[str, Sink], say: Callable[[str], None]) -> None:
        self._sinks, self._say = dict(sinks), say

    def write(self, row: Row) -> None:
        for name, sink in list(self._sinks.items()):
            try:
                sink.write(row)
            except Exception as error:  # noqa: BLE001  somebody else's package: whatever it raises, the run goes on
                del self._sinks[name]
                self._say(f"logger {name} stopped at step {row['step']}: {error}; metrics.jsonl has every row")

    def close(self) -> None:
        for name, sink in self._sinks.items():
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001  as above; the others are closed all the same
                self._say(f"logger {name} could not be closed: {error}")
        self._sinks.clear()


def open_sinks(names: Sequence[str], experiment: Experiment, say: Callable[[str], None] = print) -> Sinks:
    """One sink per name; ``ValueError`` with a sentence if one cannot be had, and then none stays open."""
    opened: dict[str, Sink] = {}
    try:
        for name in dict.fromkeys(names):
            opened[name] = _open(name, experiment)
    except BaseException:  # whatever it was, those that did open must not stay behind
        Sinks(opened, say).close()
        raise
    return Sinks(opened, say)


def _open(name: str, experiment: Experiment) -> Sink:
    if name not in _OPENERS:
        raise ValueError(f"there is no logger {name!r}; there are {', '.join(_OPENERS)}")
    try:
        return _OPENERS[name](experiment)
    except ModuleNotFoundError as error:
        package = name.removesuffix("-offline")
        if error.name is None or error.name.split(".")[0] != package:
            raise
        raise ValueError(f"logger {name!r} needs the package {package}: pip install 'tailrace[{package}]'") from error


def _tensorboard(experiment: Experiment) -> Sink:
    from tailrace.observe.sinks.tensorboard import TensorBoard

    return TensorBoard(experiment)


def _wandb(experiment: Experiment) -> Sink:
    from tailrace.observe.sinks.wandb import WeightsAndBiases

    return WeightsAndBiases(experiment)


def _wandb_offline(experiment: Experiment) -> Sink:
    from tailrace.observe.sinks.wandb import WeightsAndBiases

    return WeightsAndBiases(experiment, is_offline=True)


def _trackio(experiment: Experiment) -> Sink:
    from tailrace.observe.sinks.trackio import Trackio

    return Trackio(experiment)


_OPENERS: dict[str, Callable[[Experiment], Sink]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "wandb-offline": _wandb_offline,
    "trackio": _trackio,
}
