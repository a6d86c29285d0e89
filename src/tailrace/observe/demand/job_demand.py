"""What a job needs of shared node groups, as a file: written from a run, read by planning and simulation.

The file is JSON:

    {"format": 1, "job": "quickstart", "train_devices": 1, "rollout_devices": 1,
     "state_gb": {"weights": 15.2, "gradients": 15.2, "optimizer": 91.2},
     "trace": {"period_s": 289.03, "steps": 1,
               "segments": [{"offset_s": 231.5, "duration_s": 57.5, "slack_s": 0.0, "mean_s": 55.1}]},
     "steps": [[230.1, 48.2, 9.4], ...]}

``trace`` is the pattern that repeats. ``steps`` lists every step of the run it was made from, as seconds of rollout, of
training and of publishing and saving, so that a simulation can play the run itself. All of them are above 0, because
simulated steps have no empty parts. A file that is written by hand may leave out ``steps``, ``slack_s``, ``mean_s``,
the numbers of devices, and ``state_gb`` (all nodes of a group together), which no run records.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.job_spec import StateBytes
from tailrace.cluster.planning.sharing_forecast import PeriodTime
from tailrace.observe.time_use.phases import StepTime

FORMAT = 1
GB = 10**9
SHORTEST_S = 1e-6
"""Seconds that stand for a part of a step that took no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDemand:
    name: str
    trace: DemandTrace
    train_devices: int = 1
    rollout_devices: int = 0
    state: StateBytes = StateBytes()
    """Size of what it keeps on its node group; 0: not known."""
    run: tuple[StepTime, ...] = ()
    """Steps of the run that the trace was made from."""

    @property
    def run_s(self) -> float:
        """Seconds from the first response of the run to its last step."""
        return sum(step.seconds for step in self.run)

    def periods(self) -> list[PeriodTime]:
        """The whole periods of the run. Its first step warms up, so the first period is left out if there are more."""
        length = self.trace.steps
        steps = [self.run[at : at + length] for at in range(0, len(self.run) - length + 1, length)]
        found = [
            PeriodTime(
                pauses_s=sum(step.rollout_s for step in each), busy_s=sum(step.train_s + step.sync_s for step in each)
            )
            for each in steps
        ]
        return found[1:] or found

    def with_devices(self, train: int | None, rollout: int | None) -> JobDemand:
        """The same demand with other numbers of devices; None: as before."""
        return replace(
            self,
            train_devices=self.train_devices if train is None else train,
            rollout_devices=self.rollout_devices if rollout is None else rollout,
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "job": self.name,
            "train_devices": self.train_devices,
            "rollout_devices": self.rollout_devices,
            "state_gb": {name: size / GB for name, size in asdict(self.state).items() if size},
            "trace": {
                "period_s": self.trace.period_s,
                "segments": [_without_none(asdict(segment)) for segment in self.trace.segments],
                "steps": self.trace.steps,
            },
            "steps": [[max(part, SHORTEST_S) for part in _parts(step)] for step in self.run],
        }


def from_dict(data: Mapping[str, Any], *, name: str = "job") -> JobDemand:
    """``ValueError`` with a sentence if it is not the demand of a job. ``name``: if the data has none."""
    if data.get("format") != FORMAT:
        raise ValueError(f"its format is {data.get('format')!r}, and this version of tailrace reads format {FORMAT}")
    _check_keys(data, "", ("format", "job", "train_devices", "rollout_devices", "state_gb", "trace", "steps"))
    try:
        trace = data["trace"]
        _check_keys(trace, "trace.", ("period_s", "segments", "steps"))
        _numbers(trace, "trace.")
        for each in trace["segments"]:
            _check_keys(each, "trace.segments.", ("offset_s", "duration_s", "slack_s", "mean_s"))
            _numbers(each, "trace.segments.")
        segments = tuple(
            DemandSegment(
                offset_s=each["offset_s"],
                duration_s=each["duration_s"],
                slack_s=each.get("slack_s", 0.0),
                mean_s=each.get("mean_s"),
            )
            for each in trace["segments"]
        )
        return JobDemand(
            name=str(data.get("job", name)),
            trace=DemandTrace(period_s=trace["period_s"], segments=segments, steps=trace.get("steps", 1)),
            train_devices=_count(data, "train_devices", 1, least=1),
            rollout_devices=_count(data, "rollout_devices", 0, least=0),
            state=_state(data.get("state_gb", {})),
            run=tuple(_step(number, parts) for number, parts in enumerate(data.get("steps", ()), start=1)),
        )
    except KeyError as error:
        raise ValueError(f"{error.args[0]!r} is missing") from None
    except (TypeError, AttributeError) as error:
        raise ValueError(f"a value is not of the expected kind ({error})") from None


def _state(data: Mapping[str, Any]) -> StateBytes:
    _check_keys(data, "state_gb.", ("weights", "gradients", "optimizer"))
    _numbers(data, "state_gb.")
    return StateBytes(**{name: round(size * GB) for name, size in data.items()})


def _check_keys(data: Mapping[str, Any], prefix: str, known: Sequence[str]) -> None:
    """``ValueError`` that names the first unknown key and the known one that looks most like it."""
    for key in data:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {prefix}{close[0]}?" if close else f"known are {', '.join(known)}"
            raise ValueError(f"unknown key {prefix}{key}; {hint}")


def _numbers(data: Mapping[str, Any], prefix: str) -> None:
    """``ValueError`` if a value is no number."""
    for key, value in data.items():
        if key != "segments" and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise ValueError(f"{prefix}{key} must be a number, got {value!r}")


def _without_none(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value is not None}


def _parts(step: StepTime) -> tuple[float, float, float]:
    return step.rollout_s, step.train_s, step.sync_s


def _step(number: int, parts: Sequence[float]) -> StepTime:
    if len(parts) != 3 or not all(isinstance(part, int | float) and part >= 0 for part in parts):
        raise ValueError(f"steps: expected three numbers of seconds, got {parts!r}")
    rollout_s, train_s, sync_s = parts
    return StepTime(step=number, rollout_s=rollout_s, train_s=train_s, sync_s=sync_s)


def _count(data: Mapping[str, Any], name: str, default: int, *, least: int) -> int:
    value = data.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number from {least} on, got {value!r}")
    return value


def read(path: Path) -> JobDemand:
    """``ValueError`` with a sentence if the file cannot be read or is no trace."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"{path} is no trace: it is not JSON") from None
    if not isinstance(data, dict) or "trace" not in data:
        raise ValueError(f"{path} is no trace: `tailrace cluster trace RUN --json FILE` writes one")
    try:
        return from_dict(data, name=path.stem)
    except ValueError as error:
        raise ValueError(f"{path} is no trace: {error}") from None


def write(demand: JobDemand, path: Path) -> None:
    path.write_text(json.dumps(demand.to_dict(), indent=2) + "\n", encoding="utf-8")
