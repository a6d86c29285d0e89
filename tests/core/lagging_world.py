"""A world whose news is slow: the core hears of what happened later, and of some of it never.

News of one sender comes in its order, news of different senders in any. What the core asks for meanwhile crosses with
it: it interrupts what has ended, and sends work to an instance that is gone. A link may be held up for a while, or be
mute: nothing comes over it any more. A mute instance or trainer is for the core to kill, and what it still had to say
is never heard; if anything else is mute, the run fails with a sentence that names it and is resumed.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from hypothesis import assume

from core.world import TO_TRAINER, Sender, World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import InstanceId
from tailrace.core.schedule import Limits, Schedule

LIMIT_S = 30.0
LIMITS = Limits(
    start_s=LIMIT_S,
    progress_s=LIMIT_S,
    reward_s=LIMIT_S,
    prompts_s=LIMIT_S,
    train_s=LIMIT_S,
    weights_s=LIMIT_S,
    checkpoint_s=LIMIT_S,
    max_restarts=1000,
)
"""Hundreds of events long: what is not held up is heard of in time."""
NAMES = {
    "trainer": ("optimizer step", "publishing", "checkpoint", "start of the trainer", "the trainer to take step"),
    "rewards": ("reward of", "test results of", "score by the judge of"),
    "prompts": ("prompts of",),
}
"""How the waits for each are called."""


class Kind(Enum):
    HELD = "held"
    """Nothing is heard of the sender for a while; then everything."""
    MUTE = "mute"
    """An acknowledgement is lost, and all that follows."""
    LOST = "lost"
    """The instance or the trainer is gone."""
    CRASH = "crash"
    """The whole run is gone, and is resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    at: int
    """Events before it strikes."""
    kind: Kind
    sender: Sender
    seconds: float = 0.0
    """How long it is held up."""


class LaggingWorld(World):
    pace_s = 0.1

    def __init__(
        self,
        schedule: Schedule,
        rng: random.Random,
        *,
        num_prompts: int,
        lag: float = 0.5,
        faults: Iterable[Fault] = (),
        checks: bool = True,
    ) -> None:
        """``lag``: the part of the time in which other things happen although there is news; 0: none is late."""
        super().__init__(schedule, rng, num_prompts=num_prompts, checks=checks)
        self.lag, self.faults = lag, sorted(faults, key=lambda fault: fault.at)
        self.mail: dict[Sender, deque[ev.Event]] = {}
        self.held_until: dict[Sender, float] = {}
        self.is_trainer_gone = False
        """Whether it was lost and no new one was started: nobody is there to do what is asked for."""
        self.slowed: set[Sender] = set()
        """Those that were held up, as far as the core may have noticed."""

    def advance(self) -> None:
        self.now += self.rng.random() * self.pace_s / len(self.schedule.score_parts)
        while self.faults and len(self.entries) >= self.faults[0].at:
            self.strike(self.faults.pop(0))
        heard = [sender for sender, news in self.mail.items() if news and self.held_until.get(sender, 0.0) <= self.now]
        if heard and (self.rng.random() >= self.lag or not self.is_busy):
            self.tell(self.mail[self.rng.choice(heard)].popleft())
        elif self.is_busy:
            self.act()
        else:
            self.wait()

    def wait(self) -> None:
        """Nothing happens until somebody can be heard again or the core wants to be woken."""
        ends = [until for sender, until in self.held_until.items() if self.mail.get(sender)]
        if min(ends, default=math.inf) < (math.inf if self.timer is None else self.timer):
            self.now = max(self.now, min(ends))
        else:
            self.wake()

    def say(self, sender: Sender, event: ev.Event) -> None:
        event = self.signed(event)
        if self.lag or self.held_until.get(sender):
            self.mail.setdefault(sender, deque()).append(event)
        else:
            self.tell(event)

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        for command in self.entries[-1].commands:
            if isinstance(command, do.KillInstance):
                is_unused = self.coordinator.rooms.fleet.instances[command.instance].is_parked
                assert is_unused or command.instance in self.slowed, f"killed, and nothing of it was late: {command}"
            if isinstance(command, do.KillTrainer):
                assert "trainer" in self.slowed, f"killed, and nothing of it was late: {command}"
        if self.verdict is None:
            self.check_debts()
        elif not self.verdict.is_complete:
            reason = self.verdict.reason
            # One response at a time on a slow instance can take longer than a short limit allows, and the run says so.
            assume("responses take longer than max_stuck_s" not in reason)
            late = [sender for sender, names in NAMES.items() if any(f"for {name}" in reason for name in names)]
            assert self.slowed & {*late}, f"the run failed, and nothing was late: {reason}"
            self.crash_and_resume()

    def check_debts(self) -> None:
        """An instance that has answered everything owes nothing: no plan waits for it for ever."""
        asked = {command.instance for command in self.open if hasattr(command, "instance")}
        asked |= {sender for sender, news in self.mail.items() if news}
        for number, instance in self.coordinator.rooms.fleet.instances.items():
            if number not in asked and self.held_until.get(number) != math.inf:
                assert not instance.stopping, f"{instance} waits for an answer that was given"
                assert not instance.aborting, f"{instance} waits for an answer that was given"
                is_called = instance.is_draining and self.coordinator.rooms.training.is_open_for_pulls
                assert not is_called, f"{instance} was called and is not pulling"

    def answer(self, command: do.Command) -> None:
        number = getattr(command, "instance", None)
        if isinstance(command, do.StartTrainer):
            self.is_trainer_gone = False
            self.open = deque(c for c in self.open if not isinstance(c, TO_TRAINER))  # they were for the one before
        if self.is_trainer_gone and isinstance(command, TO_TRAINER) and not isinstance(command, do.KillTrainer):
            return
        if isinstance(command, do.StartInstance):
            self.slowed.discard(command.instance)
        elif isinstance(command, do.StartTrainer) and self.held_until.get("trainer", 0.0) <= self.now:
            self.slowed.discard("trainer")
        elif number is not None and number not in self.running:
            return  # it is gone, and the news of that ends the command
        super().answer(command)

    def strike(self, fault: Fault) -> None:
        if fault.kind is Kind.CRASH:
            self.crash_and_resume()
        elif fault.sender not in (*self.running, *NAMES):
            return
        elif fault.kind is Kind.LOST and fault.sender in self.running:
            self.lose(InstanceId(int(fault.sender)), "it was killed")
        elif fault.kind is Kind.LOST and fault.sender == "trainer":
            self.lose_trainer()
        else:
            self.held_until[fault.sender] = math.inf if fault.kind is Kind.MUTE else self.now + fault.seconds
            self.slowed.add(fault.sender)

    def lose(self, instance: InstanceId, reason: str) -> None:
        del self.running[instance]
        self.send_end(instance, self.signed(ev.InstanceLost(instance=instance, reason=reason)))

    def lose_trainer(self, reason: str = "worker 'training' was killed by SIGKILL") -> None:
        self.is_trainer_gone = True
        self.drop_training()
        self.send_end("trainer", self.signed(ev.TrainerLost(reason=reason)))

    def send_end(self, sender: Sender, end: ev.Event) -> None:
        """What it said last may still be heard, then that it is gone. A new one is not the old one's heir."""
        news = self.mail.setdefault(sender, deque())
        num_heard = 0 if self.held_until.pop(sender, None) == math.inf else self.rng.randint(0, len(news))
        self.mail[sender] = deque([*list(news)[:num_heard], end])

    def crash_and_resume(self) -> None:
        self.mail, self.held_until, self.slowed, self.is_trainer_gone = {}, {}, set(), False
        super().crash_and_resume()
