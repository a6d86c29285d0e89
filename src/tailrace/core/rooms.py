"""The rooms of a run. Each room owns the state of one concern; a snapshot holds all of them.

    responses    live groups and their members, and which responses are queued for an instance
    fleet        rollout instances, their versions, and when work is planned
    rewards      responses that need a score, and scores that are awaited
    collection   prompts, rounds and the ledger: which groups make up a batch
    training     full batches, the trainer, published versions, checkpoints
    evaluation   sets that are being evaluated
    run          time limits, the reason of the end, the timer

The folder of a room has its state (``room``), what events change in it (``facts``), what it decides (``rules``) and
what must always be true (``invariants``). Only files of that folder access its fields. Other rooms use the methods and
properties of its class: *questions*, which change nothing, and *notices*, which tell it that something has happened.
``tests/architecture/test_rooms.py`` checks this.
"""

from __future__ import annotations

from typing import Any

from tailrace.core import codec
from tailrace.core.collection.room import Collection
from tailrace.core.evaluation.room import Evaluation
from tailrace.core.fleet.instance import Instance
from tailrace.core.fleet.policy import Policies
from tailrace.core.fleet.room import Fleet
from tailrace.core.fleet.sizes import KindOfRound, Sizes
from tailrace.core.ids import InstanceId
from tailrace.core.ledger.ledger import Ledger
from tailrace.core.responses.room import Responses
from tailrace.core.rewards.room import Rewards
from tailrace.core.run.room import Run
from tailrace.core.schedule import Parallelism, Schedule
from tailrace.core.training.room import Training

_ROOMS: dict[str, type] = {
    "run": Run,
    "responses": Responses,
    "fleet": Fleet,
    "rewards": Rewards,
    "collection": Collection,
    "training": Training,
    "evaluation": Evaluation,
}


class Rooms:
    """Every room of one run, with the schedule and the policies they share."""

    __slots__ = ("policies", "schedule", *_ROOMS)

    run: Run
    responses: Responses
    fleet: Fleet
    rewards: Rewards
    collection: Collection
    training: Training
    evaluation: Evaluation

    def __init__(self, schedule: Schedule, policies: Policies) -> None:
        self.schedule, self.policies = schedule, policies
        self.run = Run(limits=schedule.limits)
        self.responses = Responses()
        self.fleet = Fleet(costs=schedule.coordination.costs, empty_since=0.0)
        for number in range(schedule.num_instances):
            self.fleet.add(Instance(id=InstanceId(number)))
        if schedule.parallelism.layouts:
            self._add_layouts(schedule.parallelism)
        self.rewards = Rewards()
        self.collection = Collection(ledger=Ledger(schedule.ledger))
        self.training = Training()
        self.evaluation = Evaluation()

    def _add_layouts(self, known: Parallelism) -> None:
        """Add the instances of all sizes. Those of the first size work; the others are parked."""
        size = known.initial
        self.fleet.sizes = Sizes(current=size, short=KindOfRound(size=size), long=KindOfRound(size=size))
        for layout in known.layouts:
            for number in layout.instances:
                if InstanceId(number) not in self.fleet.instances:
                    self.fleet.add(Instance(id=InstanceId(number)))
                self.fleet.instances[InstanceId(number)].is_parked = layout.size != size
            if layout.size == size:
                self.fleet.costs = layout.costs

    @classmethod
    def restore(cls, schedule: Schedule, policies: Policies, snapshot: Any) -> Rooms:
        rooms = cls(schedule, policies)
        for name, room in _ROOMS.items():
            setattr(rooms, name, codec.decode(room, snapshot[name]))
        return rooms

    def snapshot(self) -> dict[str, Any]:
        """Return every room as JSON values."""
        return {name: codec.encode(getattr(self, name)) for name in _ROOMS}

    def evaluation_is_over(self) -> bool:
        """Whether the current version needs no evaluation, or its evaluation is complete."""
        return self.evaluation.is_over(self.schedule, self.training.version)
