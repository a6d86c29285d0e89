"""Does the cost model still say how fast the instances of a run generate? A fold over the journal.

What an instance's reports tell about its steps (``token_clock.py``) is set beside what the model says of them. Over its
last ``window`` samples, each of some steps, an instance has a rate predicted, a rate measured, and the mean of the
errors. Where that mean exceeds ``tolerance`` on some instance the model has to be measured again; the samples kept are
load points themselves, so ``measure`` does it without stopping anything. It takes a whole window of later samples to
find it off once more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.costs import NOTHING_KNOWN, CostModel
from tailrace.core.ids import InstanceId
from tailrace.core.journal import Entry
from tailrace.observe.cost_fit import StepCosts, error, fit_jittery, sample_s
from tailrace.observe.engine_profile import cost_model
from tailrace.observe.token_clock import EngineSample, TokenClock

_LEAST_FIXED = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Tokens per second of one instance over its last samples."""

    predicted: float
    measured: float
    error: float
    """Mean over the samples, as a share."""


@dataclass(slots=True, kw_only=True)
class _Window:
    """The last samples of an instance, with the seconds that each should have taken."""

    samples: deque[tuple[EngineSample, float]]
    num_new: int = 0
    """Samples since the model was last measured."""

    @property
    def is_full(self) -> bool:
        return len(self.samples) == self.samples.maxlen

    @property
    def error(self) -> float:
        # That of a rate: the share by which it is off is that of its inverse.
        return error([sample.seconds for sample, _ in self.samples], [predicted for _, predicted in self.samples])

    def rates(self) -> Rates:
        num_tokens = sum(steps * n for sample, _ in self.samples for steps, _, n in sample.parts)
        return Rates(
            predicted=num_tokens / sum(predicted for _, predicted in self.samples),
            measured=num_tokens / sum(sample.seconds for sample, _ in self.samples),
            error=self.error,
        )


@dataclass(slots=True, kw_only=True)
class Prediction:
    """Feed it a journal from its first entry, or from where a run goes on."""

    costs: CostModel
    prompt_length: int
    """Mean tokens of a prompt; journals do not tell."""
    max_running: int
    """Responses an instance generates at the same time; the others wait for one of them to end."""
    window: int = 16
    tolerance: float = 0.5
    """Well above what a sound model shows: samples of some steps each are 0.2 to 0.35 off in runs of `tiny-arith`."""
    is_off: bool = field(default=False, init=False)
    """The model has to be measured again."""
    _clocks: dict[InstanceId, TokenClock] = field(default_factory=dict, init=False)
    _windows: dict[InstanceId, _Window] = field(default_factory=dict, init=False)

    def feed(self, entry: Entry) -> None:
        match entry.event:
            case ev.RunStarted() | ev.RunResumed():
                self._clocks.clear()
                self._windows.clear()
                self.is_off = False
            case ev.CostsMeasured(costs=costs):
                self._believe(costs)
            case ev.InstanceLost(instance=instance):
                self._clocks.pop(instance, None)
                self._windows.pop(instance, None)
            case ev.RolloutReported(instance=instance) if instance in self._clocks:
                self._clocks[instance].report(entry.event, entry.now)
            case ev.ResponsesAborted(instance=instance, aborted=aborted) if instance in self._clocks:
                self._clocks[instance].drop(part.trajectory for part in aborted)
        for command in entry.commands:
            if isinstance(command, do.Submit):
                self._clock(command.instance).submit(command.dispatches, entry.now)

    def rates(self) -> dict[InstanceId, Rates]:
        """Of the instances whose window is full."""
        return {instance: window.rates() for instance, window in self._windows.items() if window.is_full}

    def metrics(self) -> dict[str, Any]:
        """The same as columns of a row."""
        rates = self.rates()
        row: dict[str, Any] = {}
        for instance in sorted(rates):
            row[f"perf/instance_{instance}/tokens_per_s"] = rates[instance].measured
            row[f"perf/instance_{instance}/predicted_tokens_per_s"] = rates[instance].predicted
        return row | ({"perf/prediction_error": max(found.error for found in rates.values())} if rates else {})

    def measure(self) -> ev.CostsMeasured:
        """The model as the samples of all instances have it; from here on it is what they are held against."""
        samples = [sample for window in self._windows.values() for sample, _ in window.samples]
        if len(samples) < self.window:
            raise ValueError(f"{len(samples)} samples of engine steps are too few to fit: {self.window} are needed")
        before = self._worst_error()
        costs = cost_model(_with_fixed_part(fit_jittery(samples), samples), k5=self.costs.k5)
        self._believe(costs)
        return ev.CostsMeasured(costs=costs, error=before, fitted_error=self._worst_error())

    def _believe(self, costs: CostModel) -> None:
        self.costs, self.is_off = costs, False
        for window in self._windows.values():
            samples = [(sample, self._predicted_s(sample)) for sample, _ in window.samples]
            window.samples, window.num_new = deque(samples, self.window), 0

    def _clock(self, instance: InstanceId) -> TokenClock:
        if instance not in self._clocks:
            window = self._windows.setdefault(instance, _Window(samples=deque(maxlen=self.window)))
            self._clocks[instance] = TokenClock(
                prompt_length=self.prompt_length,
                max_running=self.max_running,
                hand_over=lambda sample: self._keep(window, sample),
            )
        return self._clocks[instance]

    def _keep(self, window: _Window, sample: EngineSample) -> None:
        if sample.seconds <= 0 or sample.is_first:  # warm-up says nothing about the steps to come
            return
        window.samples.append((sample, self._predicted_s(sample)))
        window.num_new += 1
        # Where nothing was known the first window is as good as any: no agreement can be but chance.
        tolerance = 0.0 if self.costs == NOTHING_KNOWN else self.tolerance
        if window.num_new >= self.window and window.error > tolerance:
            self.is_off = True

    def _predicted_s(self, sample: EngineSample) -> float:
        """The model counts tokens of the KV cache, samples those held."""
        costs = self.costs
        per_held = StepCosts(k1=costs.k1 * costs.k5, k2=costs.k2, k3=costs.k3, k4=costs.k4, prefill_s=costs.prefill_s)
        return sample_s(per_held, sample)

    def _worst_error(self) -> float:
        windows = self._windows.values()
        return max(window.error for window in windows if window.samples)


def _with_fixed_part(costs: StepCosts, samples: Iterable[EngineSample]) -> StepCosts:
    """Some part of a step takes its time whatever it computes.

    Samples of crowded instances say little about that part, and a fit may put all of it on the responses. One more
    would then add nothing to those there are, and instances would be kept half empty by a guess. So the part is at
    least what one response takes, and some share of the shortest step; k2 gives it up where it can.
    """
    shortest_s = min(sample.seconds / sample.steps for sample in samples)
    k4 = max(costs.k4, costs.k3, _LEAST_FIXED * shortest_s)
    return replace(costs, k2=max(costs.k2 - (k4 - costs.k4), 0.0), k4=k4)
