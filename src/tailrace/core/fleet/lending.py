"""Lends instances to training for the rest of a round (RollPacker, section 4.4).

    interrupt the responses of the chosen instances -> they continue on the others
    -> the instances release their memory -> pieces of the step go to the replicas on their devices
    -> the round ends, the rest goes to all replicas, the step is taken -> the instances pull and work again

Lending is considered at each further 5 % between 20 and 50 % of the batch, and done at most once in a round: earlier
there is too much left to generate, later too little to train.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tailrace.core import commands as do
from tailrace.core.fleet.instance import Instance, InstancePhase
from tailrace.core.fleet.length_history import bin_of
from tailrace.core.fleet.resizing import engine_size
from tailrace.core.fleet.scaling import PlaceView, ScalingView
from tailrace.core.ids import InstanceId
from tailrace.core.responses.response import Response
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Placement, SharedPlace, Stream

FIRST, LAST, STEP = 0.2, 0.5, 0.05
"""The completed parts of a batch between which lending is considered, and the least distance of two such moments."""


def lend(rooms: Rooms, now: float) -> Iterator[do.Command | None]:
    """Lend instances if the policy says so."""
    if not rooms.policies.scaling.lends or rooms.run.is_stopping:
        return
    if rooms.fleet.has_lent:
        if _is_nobody_left(rooms):
            yield from _take_back(rooms, now)
            yield None
        return
    if not _is_due(rooms):
        return
    chosen = tuple(rooms.policies.scaling.choose(_view(rooms)))
    if not chosen:
        return
    rooms.fleet.loans.lent, rooms.fleet.loans.made_in = chosen, rooms.training.version
    for instance in _present(rooms, chosen):
        instance.is_lent = True
        going = [response for response in instance.running if response not in instance.stopping]
        if going:
            instance.stopping.update(dict.fromkeys(going))
            yield do.Interrupt(instance=instance.id, responses=tuple(going))
    yield None


def stands_on_loan(rooms: Rooms, instance: Instance) -> bool:
    """Whether an instance would stand on devices that are lent."""
    return instance.id in rooms.fleet.loans.lent


def piece_replicas(rooms: Rooms) -> tuple[int, ...] | None:
    """Return the replicas that train a piece while the round runs; empty: all. None: none can at the moment."""
    if not rooms.fleet.has_lent:
        return None if rooms.schedule.placement is Placement.COLOCATED else ()
    lent = [place for place in _places(rooms) if {*place.instances} & {*rooms.fleet.loans.lent}]
    if not lent or not all(_is_off_device(each) for place in lent for each in _present(rooms, place.instances)):
        return None
    return tuple(sorted(replica for place in lent for replica in place.replicas))


def note_length(rooms: Rooms, response: Response, *, is_cut: bool) -> None:
    """Keep the length of a training response that ended or is aborted, if the policy reads lengths."""
    if _needs_lengths(rooms) and response.id.group.source == rooms.schedule.train_source:
        rooms.fleet.note_length(response.length, rooms.schedule.lending.max_length, is_cut=is_cut)


def _needs_lengths(rooms: Rooms) -> bool:
    return rooms.policies.scaling.needs_lengths or rooms.policies.parallelism.changes


def _is_due(rooms: Rooms) -> bool:
    """Whether the policy is asked now. Then it is not asked again before the batch has grown."""
    progress, training, loans = rooms.collection.progress, rooms.training, rooms.fleet.loans
    if progress is None or len(_places(rooms)) < 2 or training.num_batches:
        return False
    number, count, size = progress
    if loans.made_in == number or (rooms.schedule.stream is Stream.ONCE and training.has_streamed):
        return False
    is_round_trained = number == training.version and training.is_open_for_pieces(rooms.evaluation_is_over())
    if not is_round_trained or not FIRST * size <= count <= LAST * size:
        return False
    if loans.round == number and count - loans.num_seen < max(1, math.ceil(STEP * size)):
        return False
    loans.round, loans.num_seen = number, count
    return True


def _view(rooms: Rooms) -> ScalingView:
    fleet, (kv_tokens, max_running) = rooms.fleet, engine_size(rooms)
    _, count, size = rooms.collection.progress or (0, 0, 1)
    present = (_present(rooms, place.instances) for place in _places(rooms))
    return ScalingView(
        progress=count / size,
        places=[_place(rooms, instances) for instances in present if instances],
        num_instances=sum(not each.is_parked for each in fleet.instances.values()),
        ready=frozenset(each.id for each in fleet.instances.values() if each.accepts_work),
        final_lengths=_final(rooms, _unfinished(rooms)) if rooms.policies.scaling.needs_lengths else (),
        costs=fleet.costs,
        kv_tokens=kv_tokens,
        max_running=max_running,
        prompt_length=rooms.schedule.coordination.prompt_length,
    )


def _places(rooms: Rooms) -> tuple[SharedPlace, ...]:
    """Return what can be lent: with parallel sizes, the places of the size in use."""
    layout = rooms.schedule.parallelism.layout(rooms.fleet.sizes.current)
    return rooms.schedule.lending.places if layout is None else layout.places


def _place(rooms: Rooms, instances: list[Instance]) -> PlaceView:
    num_responses = sum(len(each.running) for each in instances)
    prompts = rooms.schedule.coordination.prompt_length * num_responses
    return PlaceView(
        instances=tuple(each.id for each in instances),
        num_tokens=prompts + sum(each.num_tokens for each in instances),
    )


def _unfinished(rooms: Rooms) -> list[int]:
    """Return the tokens that each unfinished response of the round has, without its prompt."""
    groups = (group for group in rooms.responses.training_groups() if group.is_live)
    return [each.length for group in groups for each in group.members.values() if not each.has_ended]


def _final(rooms: Rooms, lengths: list[int]) -> list[float]:
    """Return how long each of these responses is expected to be in the end."""
    longest = rooms.schedule.lending.max_length
    expected = rooms.fleet.loans.of_kind(is_long=rooms.collection.is_round_long).final_lengths(longest)
    return [expected[bin_of(length, longest)] for length in lengths]


def _present(rooms: Rooms, numbers: tuple[int, ...]) -> list[Instance]:
    """Return those of these instances that are in the fleet."""
    instances = rooms.fleet.instances
    return [instances[InstanceId(number)] for number in numbers if InstanceId(number) in instances]


def _is_off_device(instance: Instance) -> bool:
    return instance.phase in (InstancePhase.RELEASED, InstancePhase.ABSENT)


def _take_back(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Let lent instances work again in this round."""
    for instance in [each for each in rooms.fleet.instances.values() if each.is_lent]:
        if instance.phase is InstancePhase.RELEASED and rooms.training.published <= 0:
            # Nothing is published that it could pull; a new start has the weights that the run began with.
            yield from rooms.fleet.kill(instance.id, "it gave its weights away, and none are published yet", now)
    rooms.fleet.take_back()


def _is_nobody_left(rooms: Rooms) -> bool:
    """Whether all instances that were not lent are gone for good, and the trainer is not computing."""
    most = rooms.run.limits.max_restarts
    others = [each for each in rooms.fleet.instances.values() if not each.is_away and not each.is_retiring]
    can_work = any(each.phase is not InstancePhase.ABSENT or each.losses.count <= most for each in others)
    return not can_work and not rooms.training.is_stepping and not rooms.training.num_batches
