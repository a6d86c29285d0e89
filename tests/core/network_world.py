"""A world in which instances speak through a network that repeats, delays and makes up messages.

Each message of an instance goes through ``RolloutIntake``, which writes tokens into a payload store and returns events,
as in a real run. A message may come again at any time, also after its instance was lost and started again. A report may
come after a later one. Reports come from instances that do not exist, from other starts of an instance, and about
responses that their sender was not given; their tokens are ``GARBAGE``. A crash may come between the writing of tokens
and their event; then the store is opened again.

Whenever a response is scored or trained, the store must hold exactly what its instances generated.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np

from core.token_world import BUDGET, TokenWorld, next_logprob, whole
from core.world import Sender as Speaker
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Schedule
from tailrace.engines.contract import Output
from tailrace.runtime.adapters.rollout_intake import InstanceStart, RolloutIntake
from tailrace.store.payload_store import PayloadStore
from tailrace.store.segment import Segment
from tailrace.workers.messages import Aborted, Pulled, Released, Report, RolloutReady

GARBAGE = 77_777
Message = tuple[InstanceStart, object]


class NetworkWorld(TokenWorld):
    def __init__(
        self, schedule: Schedule, rng: random.Random, *, num_prompts: int, noise: float = 0.2, trouble: float = 0.0
    ) -> None:
        """``noise``: how often the network does something else than to deliver a message once and in time."""
        super().__init__(schedule, rng, num_prompts=num_prompts, trouble=trouble)
        self.noise = noise
        self.intake = RolloutIntake(self.store)
        self.past: list[Message | ev.Event] = []
        """What was said since the run was started or resumed: messages of instances, and other events."""
        self.late: dict[InstanceId, Message] = {}
        """A report of each instance that a later one may overtake."""
        self.num: Counter[str] = Counter()
        """How often each kind of noise came."""

    def advance(self) -> None:
        if self.past and self.rng.random() < self.noise / 2:
            self.num["repeated"] += 1
            self.repeat(self.rng.choice(self.past))
        elif self.running and self.rng.random() < self.noise / 2:
            self.num["foreign"] += 1
            self.deliver(self.make_up())
        elif self.late and not self.is_busy:
            self.deliver(self.late.pop(self.rng.choice(list(self.late))))
        else:
            super().advance()

    # What the network does

    def repeat(self, said: Message | ev.Event) -> None:
        if isinstance(said, ev.Event):
            self.tell(said)
        else:
            self.deliver(said)

    def deliver(self, *messages: Message) -> None:
        events = self.intake.events(messages)
        if self.rng.random() < self.trouble / 4:
            self.num["unheard"] += 1
            self.crash_and_resume()
            return
        for event in events:
            if self.verdict is None:
                self.tell(event)

    def send(self, instance: InstanceId, message: object) -> None:
        sent = (self.sender(instance), message)
        self.past.append(sent)
        if not isinstance(message, Report):
            self.deliver(sent)
        elif instance not in self.late and self.rng.random() < self.noise:
            self.late[instance] = sent
        elif (overtaken := self.late.pop(instance, None)) is None:
            self.deliver(sent)
        elif self.rng.random() < 0.5:
            self.num["overtaking"] += 1
            self.deliver(sent, overtaken)
        else:
            self.num["overtaking"] += 1
            self.deliver(sent)
            self.deliver(overtaken)

    def make_up(self) -> Message:
        """A report that nobody sent: from nobody, from another start, or about what its sender was not given."""
        instance = self.rng.choice(list(self.running))
        held = [(r, length) for running in self.running.values() for r, length in running.items()]
        response, position = self.rng.choice(held or [(ResponseId(GroupId("train", 0, 0), 0), 0)])
        sender = self.sender(instance)
        match self.rng.randrange(4):
            case 0:
                sender = InstanceStart(InstanceId(77), self.rng.randrange(3))
            case 1:
                sender = InstanceStart(instance, sender.incarnation + self.rng.choice([-1, 1]))
            case 2:
                response = response._replace(attempt=response.attempt + 9)
            case 3:
                response = response._replace(group=GroupId("train", 99, response.group.prompt))
        start = self.rng.choice([0, position])
        tokens = Segment(
            response_id=response,
            start=start,
            version=Version(0),
            tokens=np.full(3, GARBAGE, np.int32),
            logprobs=np.zeros(3, np.float32),
            mask=np.ones(3, np.uint8),
        )
        return sender, made([Output(segment=tokens, finish=self.rng.choice([None, *Finish]))], Version(0))

    # What instances say

    def sender(self, instance: InstanceId) -> InstanceStart:
        return InstanceStart(instance, self.incarnations.get(instance, 0))

    def say(self, sender: Speaker, event: ev.Event) -> None:
        match event:
            case ev.InstanceStarted(instance=instance, version=version):
                self.send(instance, RolloutReady(version=version))
            case ev.WeightsPulled(instance=instance, version=version, seconds=seconds):
                self.send(instance, Pulled(version=version, seconds=seconds))
            case ev.MemoryReleased(instance=instance, seconds=seconds):
                self.send(instance, Released(seconds=seconds))
            case ev.ResponsesAborted(instance=instance, aborted=aborted):
                self.send(instance, Aborted(lengths=tuple((each.response, each.length) for each in aborted)))
            case _:
                self.past.append(event)
                super().say(sender, event)

    def answer(self, command: do.Command) -> None:
        if isinstance(command, do.Submit):
            self.intake.give(self.sender(command.instance), command.dispatches)
            texts = self.texts.setdefault(command.instance, {})
            for response, start in command.dispatches:
                known = self.read(response)
                assert len(known) >= start, f"{response}: {start} tokens were reported, {len(known)} are held"
                texts[response] = known[:start]
        World.answer(self, command)

    def report(self, instance: InstanceId, stopping: tuple[ResponseId, ...] = ()) -> None:
        """Every response is some tokens further; one that is at its end has finished."""
        running, version = self.running[instance], self.versions[instance]
        outputs = []
        for response in list(running):
            text, end = self.texts[instance][response], whole(response)
            new = min(self.rng.randrange(4), len(end) - len(text))
            segment = self.generate(response, text, new, version)
            running[response] = len(text)
            finish = _finish(len(text), len(end), is_stopping=response in stopping)
            if finish is not None:
                del running[response]
            if new or finish is not None:
                outputs.append(Output(segment=segment, finish=finish))
        self.send(instance, made(outputs, version))

    def lose(self, instance: InstanceId, reason: str) -> None:
        """What it said last and nobody heard may still arrive, when it is gone."""
        if (unheard := self.late.pop(instance, None)) is not None:
            self.past.append(unheard)
        self.running.pop(instance, None)
        self.open = type(self.open)(c for c in self.open if getattr(c, "instance", None) != instance)
        end = (self.sender(instance), ev.InstanceLost(instance=instance, reason=reason))
        self.past.append(end)
        self.deliver(end)

    def crash_and_resume(self) -> None:
        self.past, self.late, self.texts = [], {}, {}
        self.store.close()
        self.store = PayloadStore.open(self.store.directory)
        self.intake = RolloutIntake(self.store)
        super().crash_and_resume()

    # What must hold

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        for command in self.entries[-1].commands:
            if isinstance(command, do.Score | do.Accumulate):
                for response in command.responses:
                    self.check_payload(response)

    def check_payload(self, response_id: ResponseId) -> None:
        text = whole(response_id)
        assert self.read(response_id) == text, f"{response_id} was lost, cut or mixed up"
        if not text:
            return
        response = self.store.response(response_id)
        expected = [next_logprob(response_id, text[:position]) for position in range(len(text))]
        assert np.array_equal(response.logprobs, np.array(expected, np.float32))
        known = self.coordinator.rooms.responses.response(response_id)
        assert list(response.versions) == known.segments, "the core and the store disagree about versions"


def made(outputs: list[Output], version: Version) -> Report:
    return Report(
        version=version, outputs=tuple(outputs), num_preemptions=0, submit_s=0.0, interrupt_s=0.0, prefill=None
    )


def _finish(length: int, end: int, *, is_stopping: bool) -> Finish | None:
    if length == end:
        return Finish.LENGTH if length == BUDGET else Finish.STOP
    return Finish.INTERRUPTED if is_stopping else None
