"""Events of rollout instances. A report that is repeated, late or impossible is refused and changes nothing.

Adapters may deliver a report twice or late. So a report is accepted only if it is possible: the instance is in the
phase that the report ends, it runs the response, and the response has no more tokens than the report says.
"""

from __future__ import annotations

from tailrace.core import events as ev
from tailrace.core.fleet.instance import Instance, InstancePhase
from tailrace.core.fleet.lending import note_length
from tailrace.core.ids import Version
from tailrace.core.responses.response import Finish, Response, ResponsePhase
from tailrace.core.rooms import Rooms

_ANY_REPORT_COUNTS = 2
"""Edition of the rules from which on every report of an instance is a sign of life. Before, only its parts were."""


def instance_added(rooms: Rooms, event: ev.InstanceAdded, now: float) -> None:
    fleet = rooms.fleet
    known = fleet.instances.get(event.instance)
    if rooms.schedule.parallelism.layouts:
        rooms.run.refuse(f"instance {event.instance} cannot be added: each parallel size has its instances")
    elif known is None:
        fleet.add(Instance(id=event.instance, heard_at=now))
    elif known.is_retiring and known.phase is not InstancePhase.STOPPING:
        known.is_retiring = False
        fleet.num_retiring -= 1
    else:
        rooms.run.refuse(f"instance {event.instance} is in the fleet already")


def instance_retired(rooms: Rooms, event: ev.InstanceRetired, now: float) -> None:
    instance = rooms.fleet.instances.get(event.instance)
    if rooms.schedule.parallelism.layouts:
        rooms.run.refuse(f"instance {event.instance} cannot be retired: each parallel size has its instances")
    elif instance is None or instance.is_retiring:
        rooms.run.refuse(f"instance {event.instance} is not there to be retired")
    elif instance.phase is InstancePhase.ABSENT:
        rooms.fleet.remove(instance, now)
    else:
        instance.is_retiring = True
        rooms.fleet.num_retiring += 1


def instance_stopped(rooms: Rooms, event: ev.InstanceStopped, now: float) -> None:
    instance = _speaker(rooms, event)
    if instance is None or instance.phase is not InstancePhase.STOPPING:
        rooms.run.refuse(f"instance {event.instance} was not asked to stop")
    elif instance.is_retiring:
        rooms.fleet.remove(instance, now)
    else:
        _lose(rooms, instance, now)


def instance_started(rooms: Rooms, event: ev.InstanceStarted, now: float) -> None:
    instance = _speaker(rooms, event)
    if instance is None or instance.phase is not InstancePhase.STARTING:
        rooms.run.refuse(f"instance {event.instance} was not being started")
        return
    rooms.fleet.sizes.start_s = now - instance.heard_at
    rooms.fleet.move(instance, InstancePhase.READY, now)
    instance.version = event.version


def instance_lost(rooms: Rooms, event: ev.InstanceLost, now: float) -> None:
    instance = _speaker(rooms, event)
    if instance is None or instance.phase is InstancePhase.ABSENT:
        rooms.run.refuse(f"instance {event.instance} was lost already")
        return
    is_not_needed = instance.is_parked and instance.is_being_killed
    _lose(rooms, instance, now)
    if not is_not_needed:  # it would be unfair to count that against its next start
        instance.losses.add(event.reason)
    if instance.is_retiring:
        rooms.fleet.remove(instance, now)


def _lose(rooms: Rooms, instance: Instance, now: float) -> None:
    """Queue the responses of a lost instance. They continue elsewhere, after their last reported token."""
    for number in list(instance.running):
        response = rooms.responses.response(number)
        instance.leave(response)
        response.move(ResponsePhase.PENDING, now=now)
        rooms.responses.wait(response)
    instance.aborting.clear()
    rooms.fleet.move(instance, InstancePhase.ABSENT, now)
    instance.version = Version(0)
    instance.num_prefilled = instance.num_preempted = instance.num_failed_pulls = 0
    instance.is_being_killed = False
    instance.moved_at = None


def rollout_reported(rooms: Rooms, event: ev.RolloutReported, now: float) -> None:
    """Record the progress of an instance. Every report of its current start is a sign of life; new tokens, ended
    responses and more prefill are progress."""
    instance = _speaker(rooms, event)
    if instance is None:
        return
    if event.num_refused:
        rooms.run.refuse(
            f"instance {instance.id} reported {event.num_refused} responses whose tokens it had reported before, or"
            " which it was not asked for"
        )
    has_progressed = event.prefill is not None and instance.prefill(event.prefill.num_tokens)
    is_training = any(rooms.responses.is_training(response) for response in instance.running)
    rooms.fleet.preempted(instance, event.num_preemptions, counts=is_training and not instance.is_parked)
    is_any_taken = False
    for progress in event.progressed:
        if (response := _running(rooms, instance, progress, event.version)) is not None:
            has_progressed |= _grow(instance, response, progress.length, event.version)
            is_any_taken = True
    for finished in event.finished:
        response = _running(rooms, instance, finished, event.version)
        if response is None:
            continue
        if finished.finish is Finish.INTERRUPTED and response.id not in instance.stopping:
            rooms.run.refuse(f"{response.id} was not asked to stop")
            continue
        _grow(instance, response, finished.length, event.version)
        _finish(rooms, instance, response, finished.finish, now)
        if finished.finish is not Finish.INTERRUPTED:
            note_length(rooms, response, is_cut=False)
        has_progressed = True
        is_any_taken = True
    if rooms.schedule.edition >= _ANY_REPORT_COUNTS:
        instance.hear(now=now, has_progressed=has_progressed)
    elif is_any_taken:
        instance.heard_at = now


def _grow(instance: Instance, response: Response, length: int, version: Version) -> bool:
    """Record the tokens of a running response. Return whether there are new ones."""
    num_new = response.grow(length, version)
    instance.num_tokens += num_new
    return num_new > 0


def _finish(rooms: Rooms, instance: Instance, response: Response, finish: Finish, now: float) -> None:
    instance.leave(response)
    if finish is Finish.INTERRUPTED:
        response.move(ResponsePhase.PENDING, now=now)
        rooms.responses.wait(response)
    else:
        if (layout := rooms.schedule.parallelism.layout_of(instance.id)) is not None:
            rooms.fleet.sizes.note_worked(layout.size)
        response.finish = finish
        response.move(ResponsePhase.GENERATED, now=now)
        rooms.rewards.add(response.id)


def _running(rooms: Rooms, instance: Instance, part: ev.Progressed | ev.Finished, version: Version) -> Response | None:
    """Return the response that a part of a report is about; None if the part is impossible or no longer needed."""
    if part.response in instance.aborting:
        return None  # the instance sent it before it received the abort
    if part.response not in instance.running:
        rooms.run.refuse(f"instance {instance.id} does not run {part.response}")
        return None
    response = rooms.responses.response(part.response)
    if not response.may_grow(part.length, version) or version > instance.version:
        rooms.run.refuse(f"{part.response} has {response.length} tokens, version {version} reports {part.length}")
        return None
    return response


def responses_aborted(rooms: Rooms, event: ev.ResponsesAborted, now: float) -> None:
    instance = _speaker(rooms, event)
    if instance is None:
        return
    is_any_confirmed = False
    for aborted in event.aborted:
        if aborted.response in instance.aborting:
            del instance.aborting[aborted.response]
            is_any_confirmed = True
        else:
            rooms.run.refuse(f"instance {instance.id} was not asked to abort {aborted.response}")
    if rooms.schedule.edition >= _ANY_REPORT_COUNTS:
        instance.hear(now=now, has_progressed=is_any_confirmed)
    elif is_any_confirmed:
        instance.heard_at = now


def weights_pulled(rooms: Rooms, event: ev.WeightsPulled, now: float) -> None:
    """Record the version that an instance pulled. It may be newer than requested. If it is older, the instance pulls
    again."""
    instance = _speaker(rooms, event)
    if instance is None:
        return
    asked, newest = instance.pulling, rooms.training.newest_pullable
    if asked is None or event.version > newest:
        rooms.run.refuse(f"instance {event.instance} pulled version {event.version}, which was not asked of it")
        return
    is_waking = instance.is_waking
    rooms.fleet.move(instance, InstancePhase.READY, now)
    if is_waking:
        rooms.fleet.sizes.wake_s = event.seconds
    instance.version = event.version
    instance.num_failed_pulls = instance.num_failed_pulls + 1 if event.version < asked else 0
    if event.version < asked:
        rooms.run.refuse(f"instance {event.instance} pulled version {event.version}, older than {asked}")
        instance.is_draining = True  # it takes no work before it has pulled again


def pull_failed(rooms: Rooms, event: ev.PullFailed, now: float) -> None:
    """Let the instance pull again once weights are published. Until then it takes no work."""
    instance = _speaker(rooms, event)
    if instance is None:
        return
    if instance.pulling is None:
        rooms.run.refuse(f"instance {event.instance} was not asked to pull")
        return
    rooms.fleet.move(instance, InstancePhase.READY, now)
    instance.num_failed_pulls += rooms.training.is_open_for_pulls  # otherwise it was not the instance that failed
    instance.version = Version(0)  # if its memory was released, it holds no weights
    instance.is_draining = True


def memory_released(rooms: Rooms, event: ev.MemoryReleased, now: float) -> None:
    instance = _speaker(rooms, event)
    if instance is None or instance.phase is not InstancePhase.RELEASING:
        rooms.run.refuse(f"instance {event.instance} was not asked to release its memory")
        return
    rooms.fleet.move(instance, InstancePhase.RELEASED, now)


def costs_measured(rooms: Rooms, event: ev.CostsMeasured, now: float) -> None:
    if event.size:
        rooms.fleet.sizes.measured[event.size] = event.costs
    if event.size == rooms.fleet.sizes.current:
        rooms.fleet.costs = event.costs


def run_resumed(rooms: Rooms, event: ev.RunResumed, now: float) -> None:
    """Reset all instances: their processes have ended."""
    fleet = rooms.fleet
    for instance in list(fleet.instances.values()):
        if instance.phase is not InstancePhase.ABSENT:
            _lose(rooms, instance, now)
        instance.losses.count = 0
        if instance.is_retiring:
            rooms.fleet.remove(instance, now)
    fleet.take_back()
    fleet.sizes.broken = {}
    fleet.plan_at = None
    if fleet.empty_since is not None:
        fleet.empty_since = now


def _speaker(rooms: Rooms, event: ev.InstanceEvent) -> Instance | None:
    """Return the instance that sent an event; None if a later process of the instance has replaced the sender."""
    instance = rooms.fleet.instances.get(event.instance)
    if instance is None or (event.incarnation is not None and event.incarnation != instance.incarnation):
        rooms.run.refuse(f"instance {event.instance} is gone, with start {event.incarnation}")
        return None
    return instance
