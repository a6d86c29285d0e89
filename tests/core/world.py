"""A world for the coordinator: it answers commands at random, loses instances, fails rewards, dies and resumes.

Not a fake of any adapter: it only obeys the contract that every command ends in its event. Randomness comes from
the generator the test hands in, so a failing history repeats.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.costs import CostModel
from tailrace.core.fleet.instance import InstancePhase
from tailrace.core.ids import InstanceId, ResponseId, Version
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.responses.response import Finish
from tailrace.core.rules import RULES, Rule
from tailrace.core.schedule import Placement, Schedule
from tailrace.core.schedule.soundness import sound
from tailrace.policies.strategies import policies_of

Sender = InstanceId | str
"""Who has something to say: an instance, or "trainer", "rewards", "prompts"."""


TO_TRAINER = do.KillTrainer | do.Accumulate | do.DropStep | do.FinishStep | do.PublishWeights | do.SaveCheckpoint
"""What a trainer is asked that runs."""


def draw_costs(rng: random.Random) -> CostModel:
    return CostModel(k1=rng.choice([0.0, 0.01]), k2=0.5, k3=rng.choice([0.0, 0.25]), k4=0.1, k5=rng.choice([1.0, 1.5]))


class World:
    """Drives a coordinator to the end of its run, checking it after every event."""

    pace_s = 1.0
    """The most seconds that pass between two events while something goes on."""

    def __init__(
        self,
        schedule: Schedule,
        rng: random.Random,
        *,
        num_prompts: int = 7,
        trouble: float = 0.0,
        checks: bool = True,
        rules: Sequence[Rule] = RULES,
    ) -> None:
        self.schedule, self.rng, self.num_prompts, self.trouble = sound(schedule), rng, num_prompts, trouble
        self.checks, self.rules = checks, rules
        self.coordinator = Coordinator(schedule, policies=policies_of(schedule), rules=rules)
        self.entries: list[Entry] = []
        self.now = 0.0
        self.open: deque[do.Command] = deque()
        self.running: dict[InstanceId, dict[ResponseId, int]] = {}
        self.versions: dict[InstanceId, Version] = {}
        self.incarnations: dict[InstanceId, int] = {}
        self.trainer_incarnation = 0
        self.published = Version(0)
        """What an instance that pulls gets: it may be newer than what it was told to pull."""
        self.trained: list[tuple[ResponseId, ...]] = []
        self.accumulated: tuple[ResponseId, ...] = ()
        """Of the step that the trainer is at."""
        self.verdict: do.FinishRun | None = None
        self.timer: float | None = None
        self.rewards: dict[tuple[Part, ResponseId], None] = {}
        """Parts of scores that are being computed."""
        self.saved: list[Version] = []
        """Checkpoints that are on disk."""
        self.to_redo: int = 0
        self.num_preempted: dict[InstanceId, int] = {}
        """Preemptions of each instance since its start."""
        self.on_devices: dict[InstanceId, set[int]] = {}
        """Devices that each instance holds memory on, as far as the core can know. Only with parallel sizes."""

    def run(self, *, max_events: int = 20_000) -> do.FinishRun:
        self.tell(ev.RunStarted(schedule=self.schedule))
        while self.verdict is None:
            assert len(self.entries) < max_events, f"no end in sight; waiting for {self.coordinator.waits()}"
            self.advance()
        return self.verdict

    def advance(self) -> None:
        """One random thing happens."""
        # A score in several parts is as many events: they come faster, so that no answer is late because of them.
        self.now += self.rng.random() * self.pace_s / len(self.schedule.score_parts)
        if self.rng.random() < self.trouble:
            self.make_trouble()
        elif self.is_busy:
            self.act()
        else:
            self.wake()

    @property
    def is_busy(self) -> bool:
        return bool(self.open or self.rewards or any(self.running.values()))

    @property
    def is_dropping(self) -> bool:
        return any(isinstance(command, do.DropStep) for command in self.open)

    def act(self) -> None:
        """An open command is answered, rewards come back or an instance reports."""
        if self.open and (self.rng.random() < 0.5 or not (self.rewards or any(self.running.values()))):
            self.answer(self.take_one())
        elif self.rewards and (self.rng.random() < 0.5 or not any(self.running.values())):
            self.reward()
        elif any(self.running.values()):
            self.report(self.rng.choice([i for i, running in self.running.items() if running]))

    def wake(self) -> None:
        assert self.timer is not None, "nothing is open and nobody will wake the core"
        self.now, self.timer = max(self.now, self.timer), None
        self.tell(ev.TimerFired())

    def say(self, sender: Sender, event: ev.Event) -> None:
        """Something has happened, and the core hears of it."""
        self.tell(self.signed(event))

    def signed(self, event: ev.Event) -> ev.Event:
        """The event with the incarnation of its sender, which came with the command to start it."""
        if isinstance(event, ev.TrainerEvent):
            return replace(event, incarnation=self.trainer_incarnation)
        if (number := getattr(event, "instance", None)) is None or not hasattr(event, "incarnation"):
            return event
        return replace(event, incarnation=self.incarnations.get(number, 0))

    def tell(self, event: ev.Event) -> None:
        if isinstance(event, ev.MemoryReleased | ev.InstanceStopped | ev.InstanceLost):
            self.on_devices.pop(event.instance, None)
        commands = self.coordinator.handle(event, now=self.now)
        self.entries.append(Entry(now=self.now, event=event, commands=tuple(commands)))
        if self.checks:
            self.coordinator.check()
        for command in commands:
            match command:
                case do.FinishRun():
                    self.verdict = command
                case do.SetTimer(at=at):
                    self.timer = at
                case do.CloseEvaluation() | do.OpenRound() | do.ReturnToSize() | do.CloseRound():
                    pass
                case do.ReportDropped() | do.LimitCases():
                    pass
                case _:
                    if isinstance(command, do.StartTrainer):
                        self.trainer_incarnation = command.incarnation
                    if isinstance(command, do.Accumulate):
                        self.check_devices(command)
                    if isinstance(command, do.StartInstance | do.PullWeights):
                        self.take_devices(command.instance)
                    self.open.append(command)

    def take_devices(self, number: InstanceId) -> None:
        """An instance is going to hold memory on its devices: no instance of another size may."""
        if (layout := self.schedule.parallelism.layout_of(number)) is None:
            return
        own = set(layout.devices_of(number))
        for other, devices in self.on_devices.items():
            assert other == number or not own & devices, f"instances {number} and {other} on the same devices"
        self.on_devices[number] = own

    def check_devices(self, piece: do.Accumulate) -> None:
        """Nobody generates on devices where a piece is trained that names its replicas, nor anywhere if training and
        rollout take turns."""
        is_colocated = self.schedule.placement is Placement.COLOCATED
        if not piece.replicas and not is_colocated:
            return
        for number, instance in self.coordinator.rooms.fleet.instances.items():
            layout = self.schedule.parallelism.layout_of(number)
            places = self.schedule.lending.places if layout is None else layout.places
            own = [place for place in places if number in place.instances]
            is_used = not piece.replicas or any({*place.replicas} & {*piece.replicas} for place in own)
            if is_used:
                assert instance.phase in (InstancePhase.RELEASED, InstancePhase.ABSENT), f"{instance} is on its devices"

    def believed(self, report: ev.RolloutReported) -> tuple[ev.Progressed | ev.Finished, ...]:
        """The parts of a report that were true when it came: here, all of them."""
        return report.parts

    def take_one(self) -> do.Command:
        """Any open command; but what one adapter was told comes to it in that order.

        A version is published, beside everything else the trainer does, before the next step ends.
        """
        chosen = self.rng.choice(self.open)
        if isinstance(chosen, do.FinishStep):
            before = do.PublishWeights | do.Accumulate
            chosen = next((c for c in self.open if isinstance(c, before)), chosen)
        if isinstance(chosen, do.DropStep | do.SaveCheckpoint) and self.is_dropping:
            chosen = next(c for c in self.open if isinstance(c, do.Accumulate | do.DropStep))
        receiver = getattr(chosen, "instance", type(chosen))
        first = next(c for c in self.open if getattr(c, "instance", type(c)) == receiver)
        self.open.remove(first)
        return first

    def answer(self, command: do.Command) -> None:
        match command:
            case do.RequestPrompts():
                self.say("prompts", self.offer(command))
            case do.StartInstance(instance=instance):
                self.running[instance], self.versions[instance] = {}, Version(0)
                self.incarnations[instance] = getattr(command, "incarnation", 0)
                self.num_preempted[instance] = 0
                self.say(instance, ev.InstanceStarted(instance=instance, version=Version(0)))
            case do.KillInstance(instance=instance, reason=reason):
                self.lose(instance, reason)
            case do.Submit(instance=instance, dispatches=dispatches):
                self.running[instance].update({d.response: d.start for d in dispatches})
            case do.Interrupt(instance=instance, responses=responses):
                self.report(instance, stopping=responses)
            case do.Abort(instance=instance, responses=responses):
                lengths = {r: self.running[instance].pop(r, 0) for r in responses}
                aborted = tuple(ev.Aborted(response=r, length=length) for r, length in lengths.items())
                self.say(instance, ev.ResponsesAborted(instance=instance, aborted=aborted))
            case do.AbortScores(responses=responses, part=part):
                self.abort(responses, part)
            case do.StopInstance(instance=instance):
                assert not self.running.pop(instance), "stop with live requests"
                self.say(instance, ev.InstanceStopped(instance=instance))
            case do.ReleaseMemory(instance=instance):
                assert not self.running[instance], "release with live requests"
                self.say(instance, ev.MemoryReleased(instance=instance, seconds=0.1))
            case do.PullWeights(instance=instance, version=version):
                assert not self.running[instance], "pull with live requests"
                if not max(version, self.published):
                    self.say(instance, ev.PullFailed(instance=instance, reason="nothing is published"))
                    return
                self.versions[instance] = max(version, self.published)
                self.say(instance, ev.WeightsPulled(instance=instance, version=self.versions[instance], seconds=0.1))
            case do.Score(responses=responses, part=part):
                self.rewards.update({(part, response): None for response in responses})
            case do.StartTrainer():
                self.reach()
            case do.KillTrainer(reason=reason):
                self.lose_trainer(reason)
            case do.Accumulate(version=version, responses=responses, piece=piece):
                assert piece == 0 or self.accumulated, "a piece without those before it"
                self.accumulated += responses
                count = len(responses)
                told = ev.GradientsAccumulated(version=version, num_responses=count, seconds=0.4, piece=piece)
                self.say("trainer", told)
            case do.DropStep():
                self.accumulated = ()
            case do.FinishStep(version=version):
                assert len({*self.accumulated}) == len(self.accumulated), "a response is in two pieces"
                self.trained.append(tuple(sorted(self.accumulated)))
                self.accumulated = ()
                metrics = (("actor/lr", 0.1),)
                self.say("trainer", ev.StepTrained(version=Version(version + 1), seconds=0.5, metrics=metrics))
            case do.PublishWeights(version=version):
                self.published = version
                self.say("trainer", ev.WeightsPublished(version=version, seconds=0.1))
            case do.SaveCheckpoint():
                self.save(command)
            case _:
                raise AssertionError(command)

    def reach(self) -> None:
        """The trainer has loaded the newest checkpoint and takes the steps after it again, one by one."""
        held = self.saved[-1] if self.saved else Version(0)
        for version in range(held, self.coordinator.version + 1):
            self.say("trainer", ev.TrainerReached(version=Version(version)))

    def save(self, command: do.SaveCheckpoint) -> None:
        """A save may fail, or the crash may come just before or just after the checkpoint is on disk."""
        chance = self.rng.random() / self.trouble if self.trouble else 1.0
        if chance < 0.25:
            self.tell(self.signed(ev.CheckpointFailed(version=command.version, reason="the disk is full")))
            assert self.verdict is not None
            self.crash_and_resume()
        elif chance < 0.5:
            self.crash_and_resume()
        else:
            self.saved.append(command.version)
            if chance < 0.75:
                self.crash_and_resume()
            else:
                self.say("trainer", ev.CheckpointSaved(version=command.version, seconds=0.1))

    def offer(self, command: do.RequestPrompts) -> ev.PromptsOffered:
        positions = [command.epoch * self.num_prompts + command.offset + i for i in range(command.count + 1)]
        if command.source != self.schedule.train_source:
            prompts = tuple((command.epoch, index) for index in range(command.count))
        else:
            prompts = tuple(divmod(position, self.num_prompts) for position in positions[:-1])
        epoch, offset = divmod(positions[-1], self.num_prompts)
        domains = tuple("aabacba"[index % 7] for _, index in prompts) if self.schedule.has_quotas else ()
        return ev.PromptsOffered(
            source=command.source, prompts=prompts, next_epoch=epoch, next_offset=offset, domains=domains
        )

    def score(self, response: ResponseId) -> ev.Scored:
        outcome = Outcome.TIMEOUT if self.rng.random() < self.trouble else Outcome.OK
        if len(self.schedule.score_parts) > 1 and self.rng.random() < 0.2:
            outcome = Outcome.ABSTAINED
        score = float(self.rng.random() < 0.5) if self.schedule.filters_equal_scores else self.rng.random()
        return ev.Scored(response=response, outcome=outcome, score=score, seconds=0.01)

    def reward(self) -> None:
        parts = list({part: None for part, _ in self.rewards})
        part = parts[0] if len(parts) == 1 else self.rng.choice(parts)
        asked = [response for other, response in self.rewards if other is part]
        done = self.rng.sample(asked, self.rng.randint(1, min(3, len(asked))))
        for response in done:
            del self.rewards[part, response]
        self.say("rewards", ev.ResponsesScored(scores=tuple(self.score(r) for r in done), part=part))

    def abort(self, responses: tuple[ResponseId, ...], part: Part) -> None:
        """Those that are scored already are not heard of again."""
        left = [r for r in responses if (part, r) in self.rewards]
        for response in left:
            del self.rewards[part, response]
        if left:
            scores = (ev.Scored(response=r, outcome=Outcome.ABORTED, score=0.0, seconds=0.0) for r in left)
            self.say("rewards", ev.ResponsesScored(scores=tuple(scores), part=part))

    def report(self, instance: InstanceId, stopping: tuple[ResponseId, ...] = ()) -> None:
        running = self.running[instance]
        progressed, finished = [], []
        for response in list(running):
            running[response] += self.rng.randrange(4)
            if self.rng.random() < self.finish_rate(response):
                length = running.pop(response)
                finished.append(ev.Finished(response=response, length=length, finish=Finish.STOP))
            elif response in stopping:
                length = running.pop(response)
                finished.append(ev.Finished(response=response, length=length, finish=Finish.INTERRUPTED))
            else:
                progressed.append(ev.Progressed(response=response, length=running[response]))
        report = ev.RolloutReported(
            instance=instance,
            version=self.versions[instance],
            progressed=tuple(progressed),
            finished=tuple(finished),
            num_preemptions=self.preempt(instance),
        )
        self.say(instance, report)

    def preempt(self, instance: InstanceId) -> int:
        """Preemptions of an instance since its start. A smaller size has more of them."""
        layout = self.schedule.parallelism.layout_of(instance)
        if layout is not None and self.rng.random() < 0.5 / layout.size:
            self.num_preempted[instance] += self.rng.randint(0, 3)
        return self.num_preempted.get(instance, 0)

    def finish_rate(self, response: ResponseId) -> float:
        """Some prompts take much longer than others."""
        return 0.05 if response.group.prompt % 5 == 0 else 0.4

    def make_trouble(self) -> None:
        if (layouts := self.schedule.parallelism.layouts) and self.rng.random() < 0.3:
            costs, size = draw_costs(self.rng), self.rng.choice(layouts).size
            self.tell(ev.CostsMeasured(costs=costs, error=1.0, fitted_error=0.1, size=size))
        elif self.coordinator.rooms.policies.plans and self.rng.random() < 0.3:
            costs = draw_costs(self.rng)
            self.tell(ev.CostsMeasured(costs=costs, error=1.0, fitted_error=0.1))
        elif self.running and self.rng.random() < 0.5:
            self.lose(self.rng.choice(list(self.running)), "it was killed")
        else:
            self.crash_and_resume()

    def lose(self, instance: InstanceId, reason: str) -> None:
        self.running.pop(instance, None)
        self.open = deque(c for c in self.open if getattr(c, "instance", None) != instance)
        self.tell(self.signed(ev.InstanceLost(instance=instance, reason=reason)))

    def lose_trainer(self, reason: str = "worker 'training' was killed by SIGKILL") -> None:
        """The training process dies, with everything it was asked to do."""
        self.drop_training()
        self.tell(self.signed(ev.TrainerLost(reason=reason)))

    def drop_training(self) -> None:
        self.accumulated = ()
        self.open = deque(c for c in self.open if not isinstance(c, do.StartTrainer | TO_TRAINER))

    def crash_and_resume(self, **changes: Any) -> None:
        """The processes of the run end, and it is continued, with these changes of its schedule."""
        snapshot = json.loads(json.dumps(self.coordinator.snapshot()))
        policies = policies_of(self.schedule)
        self.coordinator = Coordinator.restore(self.schedule, snapshot, policies=policies, rules=self.rules)
        self.running, self.open, self.timer, self.verdict, self.rewards = {}, deque(), None, None, {}
        self.published, self.accumulated, self.on_devices = Version(0), (), {}
        if self.trained and len(self.trained) > self.coordinator.version:
            self.trained.pop()  # trained, but the crash came before the news of it
        checkpoint = self.saved[-1] if self.saved else None
        self.schedule = schedule = replace(self.schedule, **changes)
        self.tell(ev.RunResumed(limits=schedule.limits, checkpoint=checkpoint, schedule=schedule))
