"""Metrics in other people's dashboards. A sink takes the rows of ``metrics.jsonl`` as they come.

Each adapter is one file that imports its package at the top; a package that is not installed is a sentence naming the
extra, before any work starts. A sink that fails later (its server is away, its disk is full) is switched off and the
run goes on: the journal and ``metrics.jsonl`` hold every row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tailrace.observe.guarded import Complain, Guarded
from tailrace.observe.metrics.rows import Row
from tailrace.observe.sinks.sink import Experiment, Sink

Opener = Callable[[Experiment], Sink]


class Sinks:
    """All sinks of a run, as one. A sink that fails is switched off, and the others go on."""

    def __init__(self, sinks: Mapping[str, Sink], complain: Complain) -> None:
        self._sinks = [Guarded(f"logger {name}", partial(_same, sink), complain) for name, sink in sinks.items()]

    def write(self, row: Row) -> None:
        for sink in self._sinks:
            sink.tell(lambda sink: sink.write(row))

    def close(self) -> None:
        for sink in self._sinks:
            sink.tell(lambda sink: sink.close())
        self._sinks.clear()


def _same(sink: Sink) -> Sink:
    return sink


def open_sinks(names: Sequence[str], experiment: Experiment, complain: Complain) -> Sinks:
    """One sink per name; ``ValueError`` with a sentence if one cannot be had, and then none stays open."""
    opened: dict[str, Sink] = {}
    try:
        for name in dict.fromkeys(names):
            opened[name] = _open(name, experiment)
    except BaseException:  # whatever it was, those that did open must not stay behind
        Sinks(opened, complain).close()
        raise
    return Sinks(opened, complain)


def check_loggers(names: Sequence[str]) -> None:
    """``ValueError`` with a sentence if one does not exist or its package is missing; opens and writes nothing."""
    for name in names:
        _opener(name)


def _open(name: str, experiment: Experiment) -> Sink:
    open_sink = _opener(name)
    try:
        return open_sink(experiment)
    except Exception as error:  # somebody else's package: not logged in, no network, whatever it is
        raise ValueError(
            f"logger {name!r} cannot be opened: {error}; repair that, or leave it out of logger"
        ) from error


def _opener(name: str) -> Opener:
    if name not in _ADAPTERS:
        raise ValueError(f"there is no logger {name!r}; there are {', '.join(_ADAPTERS)}")
    try:
        return _ADAPTERS[name]()
    except ModuleNotFoundError as error:
        package = name.removesuffix("-offline")
        if error.name is None or error.name.split(".")[0] != package:
            raise
        raise ValueError(f"logger {name!r} needs the package {package}: pip install 'tailrace[{package}]'") from error


def _tensorboard() -> Opener:
    from tailrace.observe.sinks.tensorboard import TensorBoard

    return TensorBoard


def _wandb() -> Opener:
    from tailrace.observe.sinks.wandb import WeightsAndBiases

    return WeightsAndBiases


def _wandb_offline() -> Opener:
    from tailrace.observe.sinks.wandb import WeightsAndBiases

    return partial(WeightsAndBiases, is_offline=True)


def _trackio() -> Opener:
    from tailrace.observe.sinks.trackio import Trackio

    return Trackio


_ADAPTERS: dict[str, Callable[[], Opener]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "wandb-offline": _wandb_offline,
    "trackio": _trackio,
}
