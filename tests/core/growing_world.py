"""A world whose fleet grows and shrinks while the run goes on: instances are added, and retired for good.

An instance that was retired is given nothing new. When nothing of it is left to be heard of it is told to stop, and
that is the last of it: its number is not used again.
"""

from __future__ import annotations

import random
from collections import deque

from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import InstanceId
from tailrace.core.schedule import Schedule


class GrowingWorld(World):
    def __init__(
        self,
        schedule: Schedule,
        rng: random.Random,
        *,
        num_prompts: int,
        change: float = 0.05,
        trouble: float = 0.0,
        checks: bool = True,
    ) -> None:
        """``change``: how often an instance comes or goes."""
        super().__init__(schedule, rng, num_prompts=num_prompts, trouble=trouble, checks=checks)
        self.change = change
        self.fleet = {InstanceId(number) for number in range(schedule.num_instances)}
        """Instances that were not retired."""
        self.retired: set[InstanceId] = set()
        self.stopped: set[InstanceId] = set()

    def advance(self) -> None:
        if self.rng.random() < self.change:
            self.grow_or_shrink()
        else:
            super().advance()

    def grow_or_shrink(self) -> None:
        ready = sorted(self.fleet & self.running.keys())
        if len(ready) > 1 and self.rng.random() < 0.5:
            self.retire(self.rng.choice(ready))
        elif len(self.fleet) < 5:
            self.add()

    def add(self) -> InstanceId:
        number = InstanceId(len(self.fleet) + len(self.retired))
        self.fleet.add(number)
        self.tell(ev.InstanceAdded(instance=number))
        return number

    def retire(self, number: InstanceId) -> None:
        self.fleet.remove(number)
        self.retired.add(number)
        self.tell(ev.InstanceRetired(instance=number))

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        for command in self.entries[-1].commands:
            number = getattr(command, "instance", None)
            assert number not in self.stopped, f"{command} for an instance that has stopped"
            if number in self.retired:
                assert not isinstance(command, (do.Submit, do.StartInstance)), f"{command} for one that was retired"

    def answer(self, command: do.Command) -> None:
        if isinstance(command, do.StopInstance):
            number = command.instance
            assert number in self.retired, "an instance was stopped that nobody retired"
            assert not self.running.pop(number), "an instance was stopped with live requests"
            assert all(getattr(other, "instance", None) != number for other in self.open), "it still has to answer"
            self.stopped.add(number)
            self.say(number, ev.InstanceStopped(instance=number))
        else:
            super().answer(command)

    def crash_and_resume(self) -> None:
        """What was retired and had not stopped is gone with the rest."""
        self.stopped |= self.retired
        super().crash_and_resume()
        self.open = deque(command for command in self.open if getattr(command, "instance", None) not in self.stopped)
