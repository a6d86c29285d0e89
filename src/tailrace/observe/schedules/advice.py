"""Advice about the schedule of a run: what a simulation predicts for others, as `advice.json` in the run directory.

`tailrace advise` makes it and prints it; the report shows it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

FILE = "advice.json"
_FORMAT = 1


class SpeedVerdict(StrEnum):
    """A schedule beside that of the run, in seconds per step."""

    THIS_RUN = "this run"
    FASTER = "faster"
    SLOWER = "slower"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSchedule:
    """A schedule, and what is predicted for it."""

    name: str
    preset: str
    settings: str
    """Settings of the command line that choose it."""
    bound: str
    """Most versions that a trained token may be old; `none`: any number."""
    step_s: float
    """Seconds per optimizer step: the mean over the draws."""
    least_s: float
    """Least seconds of all simulations. The printed range is wider, by the error of the run itself."""
    most_s: float
    """Most seconds of all simulations."""
    tokens: float
    """Tokens of responses trained in one step."""
    drawn_share: float
    """Share of the responses whose length was drawn, because the run did not see them to their end."""
    verdict: SpeedVerdict

    @property
    def token_ms(self) -> float:
        """Milliseconds per trained token."""
        return 1e3 * self.step_s / max(self.tokens, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    num_recorded: int
    """Optimizer steps of the run."""
    num_steps: int
    """Optimizer steps that were compared and simulated: the first ones of the run."""
    num_draws: int
    recorded_s: float
    """Seconds per step of the run, as recorded."""
    error: float
    """How far the prediction of the run itself is off, as a share of what was recorded, or what calibration had to
    correct, if that is more."""
    stretch: float
    """Factor by which calibration multiplied the fitted costs, so that the run comes out right."""
    margin: float
    """Smallest gain or loss that counts as one. It is at least the error."""
    rows: tuple[PredictedSchedule, ...]
    """The schedule of the run first, then the others, the fastest first."""
    excluded: tuple[tuple[str, str], ...]
    """Schedules that cannot be used in this run, and why."""
    sentences: tuple[str, ...]
    """The advice in words."""

    @property
    def own(self) -> PredictedSchedule:
        return self.rows[0]

    def to_dict(self) -> dict[str, Any]:
        return {"format": _FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """``ValueError`` if this release does not write such advice."""
        if data.get("format") != _FORMAT:
            raise ValueError(f"advice of format {data.get('format')!r}; this release knows {_FORMAT}")
        values = {name: value for name, value in data.items() if name != "format"}
        try:
            rows = tuple(PredictedSchedule(**row | {"verdict": SpeedVerdict(row["verdict"])}) for row in values["rows"])
            excluded = tuple((str(name), str(why)) for name, why in values["excluded"])
            found = cls(**values | {"rows": rows, "excluded": excluded, "sentences": tuple(values["sentences"])})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the advice is damaged: {error}") from None
        if wrong := _wrong_fields(found):
            raise ValueError(f"the advice is damaged: {', '.join(wrong)}")
        return found


_KINDS: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "str": str}


def _wrong_fields(advice: Advice) -> list[str]:
    """Return the names of fields that have no value or one of another type."""
    wrong = [] if advice.rows else ["rows"]
    parts: list[Advice | PredictedSchedule] = [advice, *advice.rows]
    for part in parts:
        simple = [(each.name, _KINDS[str(each.type)]) for each in fields(part) if each.type in _KINDS]
        wrong += [name for name, kind in simple if not isinstance(getattr(part, name), kind)]
    return wrong + ["sentences"] * (not all(isinstance(each, str) for each in advice.sentences))


def read(run: Path) -> Advice | None:
    """Return the advice in a run directory; None if there is none that can be read."""
    try:
        return Advice.from_dict(json.loads((run / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError):
        return None


def write(advice: Advice, path: Path) -> None:
    """Write the whole file or nothing."""
    draft = path.with_name(path.name + ".draft")
    draft.write_text(json.dumps(advice.to_dict(), indent=2) + "\n", encoding="utf-8")
    draft.replace(path)


_HEADINGS = ["schedule", "s/step", "range", "speed-up", "verdict", "tokens/step", "ms/token", "bound", "drawn"]


def cells(advice: Advice) -> list[list[str]]:
    """A row of headings, then one row per schedule."""
    return [_HEADINGS, *(_cells(row, advice.own, advice.error) for row in advice.rows)]


def _cells(row: PredictedSchedule, own: PredictedSchedule, error: float) -> list[str]:
    """``error``: how far off a prediction may be that is as good as that of the run itself."""
    error = min(error, 1.0)
    return [
        row.name,
        seconds(row.step_s),
        f"{seconds(row.least_s * (1.0 - error))} to {seconds(row.most_s * (1.0 + error))}",
        f"{own.step_s / row.step_s:.2f}x" if row.step_s else "-",
        row.verdict.value,
        f"{row.tokens:,.0f}",
        f"{row.token_ms:.3g}",
        row.bound,
        f"{row.drawn_share:.0%}",
    ]


def basis(advice: Advice) -> str:
    """Return what the advice rests on: the prediction of the run itself."""
    steps = f"{advice.num_steps}" if advice.num_steps == advice.num_recorded else f"first {advice.num_steps}"
    difference = advice.own.step_s / advice.recorded_s - 1.0 if advice.recorded_s else 0.0
    return (
        f"This run ({advice.own.name}), {steps} of {advice.num_recorded} steps: {seconds(advice.recorded_s)} s per step"
        f" recorded, {seconds(advice.own.step_s)} s predicted ({difference:+.1%}). Calibration had to"
        f" correct the fitted costs by {advice.stretch - 1.0:+.1%}. A difference below {advice.margin:.1%} counts as"
        " none."
    )


def seconds(value: float) -> str:
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"
