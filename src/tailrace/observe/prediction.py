"""Does the cost model still say how fast the instances of a run generate? A fold over the journal.

What an instance's reports tell about its steps (``token_clock.py``) is set beside what the model says of them. Over its
last ``window`` samples, each of some steps, an instance has a rate predicted, a rate measured, and the mean of the
errors. Where that mean exceeds ``tolerance`` on some instance the model has to be measured again; the samples kept are
load points themselves, so ``refit`` does it without stopping anything.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import InstanceId
from tailrace.core.journal import Entry
from tailrace.observe.cost_fit import StepCosts, error, fit_steps, sample_s
from tailrace.observe.engine_profile import cost_model
from tailrace.observe.token_clock import EngineSample, TokenClock
from tailrace.policies.cost_model import CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Tokens per second of one instance over its last samples."""

    predicted: float
    measured: float
    error: float
    """Mean over the samples, as a share."""


@dataclass(slots=True, kw_only=True)
class Prediction:
    """Feed it a journal from its first entry."""

    model: CostModel
    prefill_s: float = 0.0
    prompt_length: int
    """Mean tokens of a prompt; journals do not tell."""
    max_running: int
    """Responses an instance generates at the same time; the others wait for one of them to end."""
    window: int = 32
    tolerance: float = 0.5
    """Well above what a sound model shows: samples of some steps each are 0.2 to 0.35 off in runs of `tiny-arith`."""
    _clocks: dict[InstanceId, TokenClock] = field(default_factory=dict)
    _samples: dict[InstanceId, deque[EngineSample]] = field(default_factory=dict)

    def feed(self, entry: Entry) -> None:
        match entry.event:
            case ev.RunStarted() | ev.RunResumed():
                self._clocks.clear()
            case ev.InstanceLost(instance=instance):
                self._clocks.pop(instance, None)
            case ev.RolloutReported(instance=instance) if instance in self._clocks:
                self._clocks[instance].report(entry.event, entry.now)
            case ev.ResponsesAborted(instance=instance, aborted=aborted) if instance in self._clocks:
                self._clocks[instance].drop(part.trajectory for part in aborted)
        for command in entry.commands:
            if isinstance(command, do.Submit):
                self._clock(command.instance).submit(command.dispatches, entry.now)

    def rates(self) -> dict[InstanceId, Rates]:
        """Of the instances whose window is full."""
        return {i: self._rates(samples) for i, samples in self._samples.items() if len(samples) == self.window}

    @property
    def is_off(self) -> bool:
        """The model has to be measured again."""
        return any(rates.error > self.tolerance for rates in self.rates().values())

    def refit(self) -> CostModel:
        """The model as the samples of all instances have it; from here on it is what they are held against.

        A window that mixes old and new behaviour would be off again at once, so windows begin anew.
        """
        samples = [sample for window in self._samples.values() for sample in window]
        if len(samples) < self.window:
            raise ValueError(f"{len(samples)} samples of engine steps are too few to fit: {self.window} are needed")
        costs = fit_steps(samples, is_relative=True)
        self.model, self.prefill_s = cost_model(costs, k5=self.model.k5), costs.prefill_s
        for window in self._samples.values():
            window.clear()
        return self.model

    def _clock(self, instance: InstanceId) -> TokenClock:
        if instance not in self._clocks:
            kept = self._samples.setdefault(instance, deque(maxlen=self.window))

            def keep(sample: EngineSample) -> None:
                if sample.seconds > 0 and not sample.is_first:  # warm-up says nothing about the steps to come
                    kept.append(sample)

            self._clocks[instance] = TokenClock(
                prompt_length=self.prompt_length, max_running=self.max_running, hand_over=keep
            )
        return self._clocks[instance]

    def _rates(self, samples: deque[EngineSample]) -> Rates:
        costs = self._costs()
        predicted, real = [sample_s(costs, sample) for sample in samples], [sample.seconds for sample in samples]
        num_tokens = sum(steps * n for sample in samples for steps, _, n in sample.parts)
        return Rates(
            predicted=num_tokens / sum(predicted),
            measured=num_tokens / sum(real),
            error=error(real, predicted),  # that of a rate: the share by which it is off is that of its inverse
        )

    def _costs(self) -> StepCosts:
        """Per token held instead of per token of the KV cache."""
        model = self.model
        return StepCosts(k1=model.k1 * model.k5, k2=model.k2, k3=model.k3, k4=model.k4, prefill_s=self.prefill_s)
