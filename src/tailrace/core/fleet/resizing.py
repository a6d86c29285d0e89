"""Changes the parallel size of the instances between rounds (RollPacker, section 4.2).

    a round opens -> the policy chooses its size -> instances of other sizes interrupt their responses, and leave their
    devices (they end, or keep their processes and release their memory) -> the instances of the size start, or wake

An instance never changes its size: it is *parked* while another layout works, without a process or with released
memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.core import commands as do
from tailrace.core.collection.round import Round
from tailrace.core.costs import NOTHING_KNOWN, CostModel
from tailrace.core.fleet.instance import Instance, InstancePhase
from tailrace.core.fleet.parallelism import ParallelismView, SizeView
from tailrace.core.ids import InstanceId
from tailrace.core.rooms import Rooms
from tailrace.core.schedule.parallelism import Layout

_OFF_DEVICE = (InstancePhase.RELEASED, InstancePhase.ABSENT)


def choose_size(rooms: Rooms, round: Round) -> None:
    """Choose the size of a round that opens."""
    sizes, policy = rooms.fleet.sizes, rooms.policies.parallelism
    if not rooms.schedule.parallelism.layouts:
        return
    kind = sizes.of_kind(is_long=round.is_long)
    if policy.changes:
        chosen = policy.choose(_view(rooms, round)).size
        if chosen != kind.size:
            kind.change(chosen)
    sizes.num_preempted = 0
    if kind.size != sizes.current:
        _use(rooms, kind.size)


def _use(rooms: Rooms, size: int) -> None:
    rooms.fleet.use_size(size, costs_of(rooms, size))
    for instance in _others(rooms):
        instance.is_parked = True


def fall_back(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Return to the size that worked before, if no instance of the size in use can be started."""
    sizes, instances, most = rooms.fleet.sizes, rooms.fleet.instances, rooms.run.limits.max_restarts
    layout = rooms.schedule.parallelism.layout(sizes.current)
    if layout is None or sizes.is_changing or (size := sizes.another_that_worked()) is None:
        return
    own = [instances[InstanceId(number)] for number in layout.instances]
    if any(each.phase is not InstancePhase.ABSENT or each.losses.count <= most for each in own):
        return
    broken = sizes.current
    sizes.broken[broken] = None
    for kind in (sizes.short, sizes.long):
        if kind.size == broken:
            kind.change(size)
    _use(rooms, size)
    yield do.ReturnToSize(parallel_size=size, broken_size=broken, reason=own[-1].losses.last)


def change_layout(rooms: Rooms, now: float) -> Iterator[do.Command | None]:
    """Bring the fleet to the layout in use: the instances of others leave, then its own start or wake."""
    fleet, known = rooms.fleet, rooms.schedule.parallelism
    if not fleet.sizes.is_changing or (layout := known.layout(fleet.sizes.current)) is None:
        return
    others = _others(rooms)
    for instance in others:
        yield from _clear(rooms, instance, now)
    if all(each.phase in _OFF_DEVICE for each in others):
        fleet.layout_is_free(layout.instances)
        yield None


def _others(rooms: Rooms) -> list[Instance]:
    """Return the instances of the sizes that are not in use."""
    known, size = rooms.schedule.parallelism, rooms.fleet.sizes.current
    used = {number for layout in known.layouts if layout.size == size for number in layout.instances}
    return [instance for instance in rooms.fleet.instances.values() if instance.id not in used]


def _clear(rooms: Rooms, instance: Instance, now: float) -> Iterator[do.Command]:
    """Get an instance off its devices, one command after the other."""
    parks = rooms.schedule.parallelism.parks
    if instance.is_being_killed:
        return
    if instance.phase is InstancePhase.STARTING:
        yield from rooms.fleet.kill(instance.id, "its parallel size is no longer used", now)
        return
    going = [response for response in instance.running if response not in instance.stopping]
    if going:
        instance.stopping.update(dict.fromkeys(going))
        yield do.Interrupt(instance=instance.id, responses=tuple(going))
    elif parks and instance.has_nothing:
        rooms.fleet.move(instance, InstancePhase.RELEASING, now)
        yield do.ReleaseMemory(instance=instance.id)
    elif not parks and (instance.has_nothing or instance.phase is InstancePhase.RELEASED):
        rooms.fleet.move(instance, InstancePhase.STOPPING, now)
        yield do.StopInstance(instance=instance.id)


def costs_of(rooms: Rooms, size: int) -> CostModel:
    """Return the costs of an instance of this size, as they were last measured. If nothing is known of it, they are
    those that were measured of the nearest size."""
    measured, layout = rooms.fleet.sizes.measured, rooms.schedule.parallelism.layout(size)
    assert layout is not None
    if size not in measured and measured and layout.costs == NOTHING_KNOWN:
        return measured[min(measured, key=lambda other: max(other, size) / min(other, size))]
    return measured.get(size, layout.costs)


def max_in_flight(rooms: Rooms) -> int:
    """Return how many responses an instance of the size in use may have at the same time."""
    layout = rooms.schedule.parallelism.layout(rooms.fleet.sizes.current)
    return (layout.max_in_flight if layout is not None else 0) or rooms.schedule.max_in_flight


def engine_size(rooms: Rooms) -> tuple[int, int]:
    """Return how many tokens the KV cache of an instance holds now, and how many responses it generates at once."""
    layout = rooms.schedule.parallelism.layout(rooms.fleet.sizes.current)
    known = rooms.schedule.coordination if layout is None else layout
    return known.kv_tokens, known.max_running


def is_off_duty(rooms: Rooms, instance: Instance) -> bool:
    """Whether an instance must not start now: its layout is not used, or another one has not left the devices."""
    layout = rooms.schedule.parallelism.layout_of(instance.id)
    return layout is not None and (rooms.fleet.sizes.is_changing or layout.size != rooms.fleet.sizes.current)


def _view(rooms: Rooms, round: Round) -> ParallelismView:
    fleet, known = rooms.fleet, rooms.schedule.parallelism
    kind, other = fleet.sizes.of_kind(is_long=round.is_long), fleet.sizes.of_kind(is_long=not round.is_long)
    return ParallelismView(
        size=kind.size,
        sizes=[_size(rooms, layout) for layout in known.layouts if layout.size not in fleet.sizes.broken],
        before=kind.before,
        last=kind.last,
        num_launched=kind.num_launched,
        num_quiet=kind.num_quiet,
        active=fleet.loans.of_kind(is_long=round.is_long).active(),
        max_length=rooms.schedule.lending.max_length,
        prompt_length=rooms.schedule.coordination.prompt_length,
        rounds=_expected_rounds(rooms, round, kind.num_rounds, other.num_rounds),
        other_size=other.size,
        back_s=_wake_s(rooms) if known.parks else _start_s(rooms),
    )


def _size(rooms: Rooms, layout: Layout) -> SizeView:
    is_asleep = all(rooms.fleet.is_released(number) for number in layout.instances)
    change_s = _wake_s(rooms) if is_asleep else _start_s(rooms)
    return SizeView(
        division=layout.division,
        num_instances=layout.count,
        kv_tokens=layout.kv_tokens,
        max_running=layout.max_running,
        costs=costs_of(rooms, layout.size),
        is_measured=layout.is_measured or layout.size in rooms.fleet.sizes.measured,
        change_s=0.0 if layout.size == rooms.fleet.sizes.current else change_s,
    )


def _start_s(rooms: Rooms) -> float:
    measured = rooms.fleet.sizes.start_s
    return rooms.schedule.parallelism.start_s if measured is None else measured


def _wake_s(rooms: Rooms) -> float:
    measured = rooms.fleet.sizes.wake_s
    return rooms.schedule.parallelism.wake_s if measured is None else measured


def _expected_rounds(rooms: Rooms, round: Round, num_same: int, num_other: int) -> tuple[int, int]:
    """Return how many rounds of the same and of the other kind are expected within the horizon, this one included, if
    both come as often as before."""
    left, horizon = rooms.schedule.max_steps - round.number, rooms.schedule.parallelism.horizon
    most = left if horizon is None else min(left, horizon)
    same = -(-most * (num_same + 1) // (num_same + num_other + 1))
    return same, most - same
