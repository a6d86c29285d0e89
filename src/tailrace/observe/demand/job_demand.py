"""What a job needs of shared node groups, as a file: written from a run, read by planning and simulation.

The file is JSON:

    {"format": 1, "job": "quickstart", "train_devices": 1, "rollout_devices": 1,
     "trace": {"period_s": 289.03, "steps": 1, "segments": [{"offset_s": 231.5, "duration_s": 57.5, "slack_s": 0.0}]},
     "run": [{"step": 1, "rollout_s": 230.1, "train_s": 48.2, "sync_s": 9.4}, ...]}

``trace`` is the pattern that repeats. ``run`` lists every step of the run it was made from, so that a simulation can
play the run itself; a file that is written by hand may leave it out. ``slack_s`` and the numbers of devices may be left
out too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tailrace.cluster.demand.trace import DemandTrace, Segment
from tailrace.observe.time_use.phases import StepTime

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDemand:
    name: str
    trace: DemandTrace
    train_devices: int = 1
    rollout_devices: int = 0
    run: tuple[StepTime, ...] = ()
    """Steps of the run that the trace was made from."""

    @property
    def run_s(self) -> float:
        """Seconds from the first response of the run to its last step."""
        return sum(step.seconds for step in self.run)

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
            "trace": asdict(self.trace),
            "run": [asdict(step) for step in self.run],
        }


def from_dict(data: Mapping[str, Any], *, name: str = "job") -> JobDemand:
    """``ValueError`` with a sentence if it is not the demand of a job. ``name``: if the data has none."""
    if data.get("format") != FORMAT:
        raise ValueError(f"its format is {data.get('format')!r}, and this version of tailrace reads format {FORMAT}")
    try:
        trace = data["trace"]
        segments = tuple(Segment(**each) for each in trace["segments"])
        return JobDemand(
            name=str(data.get("job", name)),
            trace=DemandTrace(period_s=trace["period_s"], segments=segments, steps=trace.get("steps", 1)),
            train_devices=_count(data, "train_devices", 1, least=1),
            rollout_devices=_count(data, "rollout_devices", 0, least=0),
            run=tuple(StepTime(**step) for step in data.get("run", ())),
        )
    except KeyError as error:
        raise ValueError(f"{error.args[0]!r} is missing") from None
    except (TypeError, AttributeError) as error:
        raise ValueError(f"a value is not of the expected kind ({error})") from None


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
