"""A world whose links repeat themselves: the core hears things twice, out of order, and from workers that are gone.

A report of an instance may come after a later one of the same instance. Anything a worker ever said may be said again,
also after the worker was lost and started again, and what an instance said last may arrive only then. A pull may
bring weights older than those that were asked for. These events still say what was true when they were sent.

Others are foreign: they come from an instance or a start of it that does not exist, or name a response that nobody
knows.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TypeVar

from core.world import Sender, World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import InstanceId, ResponseId
from tailrace.core.schedule import Schedule


class NoisyWorld(World):
    def __init__(
        self,
        schedule: Schedule,
        rng: random.Random,
        *,
        num_prompts: int,
        noise: float = 0.1,
        trouble: float = 0.0,
        checks: bool = True,
    ) -> None:
        """``noise``: how often a report is repeated, foreign, comes late or tells of an old version."""
        super().__init__(schedule, rng, num_prompts=num_prompts, trouble=trouble, checks=checks)
        self.noise = noise
        self.past: list[ev.Event] = []
        """What workers said since the run was started or resumed."""
        self.late: dict[InstanceId, ev.Event] = {}
        """A report of each instance that a later one may overtake."""
        self.num_repeated = self.num_foreign = 0
        self.untrue: dict[int, set[ResponseId]] = {}
        """Responses that a report told more tokens of than the core took note of, by the identity of the report."""

    def advance(self) -> None:
        if self.past and self.rng.random() < self.noise:
            self.num_repeated += 1
            self.tell(self.rng.choice(self.past))
        elif self.past and self.rng.random() < self.noise / 2:
            self.num_foreign += 1
            self.tell(self.disguised(self.rng.choice(self.past)))
        elif self.late and not self.is_busy:
            self.tell(self.late.pop(self.rng.choice(list(self.late))))
        else:
            super().advance()

    def disguised(self, event: ev.Event) -> ev.Event:
        """Something that was said, as if somebody else had said it, or of something else."""
        if isinstance(event, ev.RolloutReported) and self.rng.random() < 0.5:
            return replace(event, progressed=_renamed(event.progressed), finished=_renamed(event.finished))
        if isinstance(event, ev.InstanceEvent) and self.rng.random() < 0.5:
            return replace(event, incarnation=(event.incarnation or 0) + self.rng.choice([-1, 1000]))
        if isinstance(event, ev.InstanceEvent):
            return replace(event, instance=InstanceId(77))
        if isinstance(event, ev.ResponsesScored):
            return replace(event, scores=_renamed(event.scores))
        return event

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        if isinstance(event, ev.RolloutReported):
            known = {part.response: self.coordinator.rooms.responses.find(part.response) for part in event.parts}
            self.untrue[id(event)] = {
                part.response
                for part in event.parts
                if (response := known[part.response]) is not None and response.length < part.length
            }

    def believed(self, report: ev.RolloutReported) -> tuple[ev.Progressed | ev.Finished, ...]:
        return tuple(part for part in report.parts if part.response not in self.untrue[id(report)])

    def say(self, sender: Sender, event: ev.Event) -> None:
        event = self.signed(event)
        self.past.append(event)
        if isinstance(event, ev.RolloutReported) and event.instance not in self.late and self.rng.random() < self.noise:
            self.late[event.instance] = event
            return
        self.tell(event)
        if isinstance(event, ev.RolloutReported) and (overtaken := self.late.pop(event.instance, None)) is not None:
            self.tell(overtaken)

    def answer(self, command: do.Command) -> None:
        if isinstance(command, do.PullWeights) and self.rng.random() < self.noise / 2:
            self.say(command.instance, ev.PullFailed(instance=command.instance, reason="no writer"))
        elif isinstance(command, do.PullWeights) and self.rng.random() < self.noise:
            held = self.versions[command.instance]
            self.say(command.instance, ev.WeightsPulled(instance=command.instance, version=held, seconds=0.1))
        else:
            super().answer(command)

    def lose(self, instance: InstanceId, reason: str) -> None:
        """What it said last and nobody heard may still arrive, when it is gone."""
        if (unheard := self.late.pop(instance, None)) is not None:
            self.past.append(unheard)
        super().lose(instance, reason)
        self.past.append(self.entries[-1].event)

    def make_trouble(self) -> None:
        if self.rng.random() < 0.2:
            self.lose_trainer()
        else:
            super().make_trouble()

    def lose_trainer(self, reason: str = "worker 'training' was killed by SIGKILL") -> None:
        super().lose_trainer(reason)
        self.past.append(self.entries[-1].event)

    def crash_and_resume(self) -> None:
        self.past, self.late = [], {}
        super().crash_and_resume()


Part = TypeVar("Part", ev.Progressed, ev.Finished, ev.Scored)


def _renamed(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(replace(part, response=part.response._replace(attempt=99)) for part in parts)
