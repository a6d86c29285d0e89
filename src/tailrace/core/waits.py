"""What the run waits for, since when and until when. Nothing waits without a name, an age and a limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tailrace.core.fleet import Instance, InstancePhase
from tailrace.core.ids import InstanceId
from tailrace.core.schedule import Limits, Schedule
from tailrace.core.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    what: str
    """A phrase that completes "waiting for ..."."""
    since: float
    limit_s: float
    instance: InstanceId | None = None
    """The instance to restart when the limit is passed; without one the run fails."""

    @property
    def until(self) -> float:
        return self.since + self.limit_s


def waits(state: State, schedule: Schedule) -> list[Wait]:
    """All current waits, the most telling first."""
    limits = state.limits
    if state.verdict is not None:
        return []
    found = [wait for instance in state.instances.values() for wait in _instance_waits(state, instance, limits)]
    if state.scoring:
        found.append(_reward_wait(state, limits))
    for source, pending in state.prompts.items():
        found.append(Wait(what=f"prompts of '{source}'", since=pending.since, limit_s=limits.prompts_s))
    if state.is_trainer_asked and not state.is_trainer_ready:
        found.append(_trainer_wait(state, limits))
    if (p := state.training) is not None:
        found.append(Wait(what=f"optimizer step {p.version + 1}", since=p.since, limit_s=limits.train_s))
    if (p := state.publishing) is not None:
        found.append(Wait(what=f"publishing of version {p.version}", since=p.since, limit_s=limits.weights_s))
    if (p := state.saving) is not None:
        found.append(Wait(what=f"checkpoint of step {p.version}", since=p.since, limit_s=limits.checkpoint_s))
    return found


def _instance_waits(state: State, instance: Instance, limits: Limits) -> Iterator[Wait]:
    number = instance.id
    if instance.is_condemned:
        # Its adapter was told to end it: if even that is not confirmed, restarting again would not help.
        yield Wait(what=f"end of instance {number}", since=instance.heard_at, limit_s=limits.start_s)
    elif instance.phase is InstancePhase.STARTING:
        yield Wait(what=f"start of instance {number}", since=instance.heard_at, limit_s=limits.start_s, instance=number)
    elif instance.phase is InstancePhase.PULLING:
        what = f"instance {number} to load version {state.published}"
        yield Wait(what=what, since=instance.heard_at, limit_s=limits.weights_s, instance=number)
    elif instance.phase is InstancePhase.RELEASING:
        what = f"instance {number} to release its memory"
        yield Wait(what=what, since=instance.heard_at, limit_s=limits.weights_s, instance=number)
    elif instance.aborting and not instance.running:
        what = f"instance {number} to give up {len(instance.aborting)} responses"
        yield Wait(what=what, since=instance.heard_at, limit_s=limits.progress_s, instance=number)
    elif instance.running:
        first = next(iter(instance.running))
        more = f" and {len(instance.running) - 1} more" if len(instance.running) > 1 else ""
        what = f"response {first}{more} on instance {number}"
        yield Wait(what=what, since=instance.heard_at, limit_s=limits.progress_s, instance=number)


def _trainer_wait(state: State, limits: Limits) -> Wait:
    if state.trainer is None:
        return Wait(what="start of the trainer", since=state.trainer_heard_at, limit_s=limits.start_s)
    what = f"the trainer to take step {state.trainer + 1} of {state.version} again"
    return Wait(what=what, since=state.trainer_heard_at, limit_s=limits.train_s)


def _reward_wait(state: State, limits: Limits) -> Wait:
    first = next(iter(state.scoring))
    more = f" and {len(state.scoring) - 1} more" if len(state.scoring) > 1 else ""
    return Wait(what=f"reward of {first}{more}", since=state.scored_at, limit_s=limits.reward_s)
