"""Does the cost model still say how fast the instances of a run generate? A fold over the journal.

The steps that an instance reports (``token_clock.py``) are compared with what the model predicts for them. Over its
last ``window`` samples, an instance has a predicted rate, a measured rate, and a mean error. If the mean error of an
instance exceeds ``tolerance``, the model has to be fitted again. ``measure`` does this from the samples that were kept,
without stopping anything. Then a whole window of new samples is needed before the model can be found wrong again. A fit
that is itself off by more than ``tolerance`` is not believed: such samples hold something that the model does not know,
such as kernels that were compiled on the way.

Where instances have several parallel sizes, each has a cost model of its own. The one compared is that of the size that
generates; when a round opens with another size, its own samples are needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.costs import NOTHING_KNOWN, CostModel
from tailrace.core.ids import InstanceId
from tailrace.core.journal import Entry
from tailrace.observe.costs.fitting import ErrorScale, StepCosts, error, fit_engine, sample_s
from tailrace.observe.costs.token_clock import EngineSample, TokenClock

_LEAST_FIXED = 0.01


class SizeCosts(NamedTuple):
    """What is known of the instances of a parallel size."""

    costs: CostModel
    max_running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Tokens per second of one instance over its last samples."""

    predicted: float
    measured: float
    error: float
    """Mean error over the samples, as a share."""


@dataclass(slots=True, kw_only=True)
class _Window:
    """The last samples of an instance, each with the seconds that the model predicts for it."""

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
    """Mean tokens of a prompt; the journal does not contain it."""
    max_running: int
    """Responses an instance generates at the same time; the others wait for one of them to end."""
    window: int = 16
    sizes: Mapping[int, SizeCosts] = field(default_factory=dict)
    """What is known of each parallel size; empty: there is one, which the journal does not name."""
    size: int = 0
    """The size that generates; 0: there is only one."""
    tolerance: float = 0.5
    """Well above what a sound model shows: samples of some steps each are 0.2 to 0.35 off in runs of `tiny-arith`."""
    is_off: bool = field(default=False, init=False)
    """The model has to be measured again."""
    _costs: dict[int, CostModel] = field(default_factory=dict, init=False)
    """Costs that were measured of sizes."""
    _clocks: dict[InstanceId, TokenClock] = field(default_factory=dict, init=False)
    _windows: dict[InstanceId, _Window] = field(default_factory=dict, init=False)

    def feed(self, entry: Entry) -> None:
        match entry.event:
            case ev.RunStarted() | ev.RunResumed():
                self._clocks.clear()
                self._windows.clear()
                self.is_off = False
            case ev.CostsMeasured(costs=costs, size=size):
                self._costs[size] = costs
                if size == self.size:
                    self._believe(costs)
            case ev.InstanceLost(instance=instance):
                self._clocks.pop(instance, None)
                self._windows.pop(instance, None)
            case ev.RolloutReported(instance=instance) if instance in self._clocks:
                self._clocks[instance].report(entry.event, entry.now)
            case ev.ResponsesAborted(instance=instance, aborted=aborted) if instance in self._clocks:
                self._clocks[instance].drop(part.response for part in aborted)
        for command in entry.commands:
            match command:
                case do.OpenRound(parallel_size=size) | do.ReturnToSize(parallel_size=size) if size != self.size:
                    self._change_size(size)
                case do.Submit():
                    self._clock(command.instance).submit(command.dispatches, entry.now)

    def rates(self) -> dict[InstanceId, Rates]:
        """The rates of the instances whose window is full."""
        return {instance: window.rates() for instance, window in self._windows.items() if window.is_full}

    def metrics(self) -> dict[str, Any]:
        """The rates and the largest error as columns of a row of metrics."""
        rates = self.rates()
        row: dict[str, Any] = {}
        for instance in sorted(rates):
            row[f"perf/instance_{instance}/tokens_per_s"] = rates[instance].measured
            row[f"perf/instance_{instance}/predicted_tokens_per_s"] = rates[instance].predicted
        return row | ({"perf/prediction_error": max(found.error for found in rates.values())} if rates else {})

    def measure(self) -> ev.CostsMeasured | None:
        """Fit the model to the samples of all instances. Later samples are compared with the new model; None: the fit
        is no better, and the old one stays until there is a window of new samples."""
        samples = [sample for window in self._windows.values() for sample, _ in window.samples]
        if len(samples) < self.window:
            raise ValueError(f"{len(samples)} samples of engine steps are too few to fit: {self.window} are needed")
        before, known = self._worst_error(), self.costs
        fitted = fit_engine(samples, ErrorScale.EXPECTED)
        costs = _with_fixed_part(fitted, samples).to_model(k5=self.costs.k5)
        costs = replace(costs, most_running=max(n for sample in samples for _, _, n in sample.parts))
        self._believe(costs)
        if (after := self._worst_error()) > self.tolerance:
            self._believe(known)
            return None
        return ev.CostsMeasured(costs=costs, error=before, fitted_error=after, size=self.size)

    def _change_size(self, size: int) -> None:
        """Compare with the costs of another size from now on. What instances of the last one still report is
        ignored."""
        self._clocks.clear()
        self._windows.clear()
        self.size, self.is_off = size, False
        if (known := self.sizes.get(size)) is not None:
            self.costs, self.max_running = self._costs.get(size, known.costs), known.max_running

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
        return sample_s(StepCosts.of_model(self.costs), sample)

    def _worst_error(self) -> float:
        windows = self._windows.values()
        return max(window.error for window in windows if window.samples)


def _with_fixed_part(costs: StepCosts, samples: Iterable[EngineSample]) -> StepCosts:
    """Make sure that the fixed cost of a step, k4, is not too small.

    Samples of instances with many responses say little about k4, and a fit may attribute all seconds to the responses.
    The model would then say that one more response brings nothing, and instances would be kept half empty. So k4 is at
    least the cost of one response and a share of the shortest step. What k4 gains is taken from k2 where possible.
    """
    shortest_s = min(sample.seconds / sample.steps for sample in samples)
    k4 = max(costs.k4, costs.k3, _LEAST_FIXED * shortest_s)
    return replace(costs, k2=max(costs.k2 - (k4 - costs.k4), 0.0), k4=k4)
