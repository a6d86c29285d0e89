"""Routing policy that sends each response to the instance where it adds the most tokens per second, or keeps it queued.

Responses are routed in the order of the queue: from the oldest version to new groups. The instances that may take a
response are divided into tiers of one version each. Within a tier, the instance with the largest gain gets the
response. A new group tries the tier of the oldest version first, because that version can take the least other work. A
started group tries the tier with the largest gain first. Otherwise responses that migration takes from a loaded
instance of an old version would return to it, again and again, while newer instances are idle.

A tier is skipped if its largest gain is below ``min_gain`` times the ideal gain, the gain on an idle instance. If all
tiers are skipped, the response stays queued, and the instances that may generate it are closed for all later responses,
so that none of them overtakes it. Other instances stay open.

An idle instance always offers the ideal gain, so no response that may run somewhere stays queued for ever.

A gain that is only guessed keeps no response queued: costs that were measured with one response at a time could say
that a second one brings nothing, and would never be measured with more. With a single instance nothing is gained by
waiting for a better place, so there every response that has room is routed (``min_gain`` is None).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import ClassVar, Self

from tailrace.core.costs import CostModel, step_s
from tailrace.core.fleet.policy import FleetView, InstanceView, Route, WaitingGroup
from tailrace.core.ids import InstanceId, ResponseId, Version
from tailrace.core.ledger.admission import Overlay
from tailrace.core.schedule import Schedule

_ANY, _NO_ROOM = -1e300, -math.inf
_TRIES = 4
"""Most instances of a tier that are searched for room in their KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """Settings of the policy."""

    is_planned: ClassVar[bool] = True
    needs_homes: ClassVar[bool] = False
    kv_budget: float = math.inf
    """Size of an instance's KV cache in tokens."""
    max_running: float = math.inf
    """Most responses an instance generates at the same time."""
    min_gain: float | None = 0.3
    """Smallest gain for which a response is routed, as a fraction of the ideal gain; None: room is enough."""
    prompt_length: int = 0
    """Mean prompt length in tokens. Instances of a tier are sorted by the gain of a new response of this length."""

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        chosen = schedule.coordination
        return cls(
            kv_budget=chosen.kv_tokens or math.inf,
            max_running=chosen.max_running or math.inf,
            min_gain=chosen.min_gain if schedule.num_instances > 1 else None,
            prompt_length=chosen.prompt_length,
        )

    def route(self, view: FleetView) -> Iterator[Route]:
        tiers, admission = _Tiers(self, view), view.admission.copy()
        for group in view.queue:
            if not tiers.open:
                return
            if group.version is not None:
                route = tiers.go_on(group, group.version)
            else:
                route = tiers.begin(group, view.oldest_for_new, admission)
            if route is not None:
                yield route
            elif group.version is None:
                return  # all later groups are new too, so they cannot be routed either


class _Tiers:
    """The tiers that are not closed, oldest version first."""

    def __init__(self, policy: Waterfall, view: FleetView) -> None:
        loads: dict[Version, list[_Load]] = {}
        for each in view.instances:
            room = 0 if each.num_waiting else min(each.capacity, policy.max_running) - each.num_responses
            if room >= 1:
                loads.setdefault(each.version, []).append(_Load(each, room, view.costs))
        self.open = [_Tier(version, policy, view.costs, loads[version]) for version in sorted(loads)]
        self._costs, self._min_gain = view.costs, policy.min_gain

    def begin(self, group: WaitingGroup, oldest: Version, admission: Overlay) -> Route | None:
        """Route a new group; None if it stays queued. The first tier that takes a member determines the version of the
        group. No member has a token, so all are alike: a tier takes as many as it can, the next tiers the rest."""
        length, num_members, version = group.lengths[0], len(group.responses), None
        enough, chosen = self._enough(length), list[InstanceId]()
        for tier in self.open:
            if version is None and (tier.version < oldest or not admission.can_reserve(tier.version)):
                continue
            while len(chosen) < num_members and (number := tier.take(length, enough)) is not None:
                chosen.append(number)
            if chosen and version is None:
                version = tier.version
                admission.reserve(version)
        if version is None:
            return None
        if len(chosen) < num_members:
            self._close(version)
        return Route(group.group, group.responses[: len(chosen)], chosen)

    def go_on(self, group: WaitingGroup, version: Version) -> Route | None:
        """Route members of a started group of this version; None if all of them stay queued."""
        if self.open[-1].version < min(group.needs):
            return None  # no instance in the view may take it, so none is closed
        going, chosen = list[ResponseId](), list[InstanceId]()
        able, able_from = self.open, None
        for response, length, needs in group.members:
            oldest = needs if needs > version else version
            if oldest != able_from:
                able, able_from = self._able(oldest, group.is_exact), oldest
            enough = self._enough(length) if able else math.inf
            for tier in _most_gain_first(able, length):
                if (number := tier.take(length, enough)) is not None:
                    going.append(response)
                    chosen.append(number)
                    break
            else:
                self._close(oldest)
                able = []
        return Route(group.group, going, chosen) if going else None

    def _enough(self, length: int) -> float:
        """Return the smallest gain for which a response of this length is routed."""
        if self._min_gain is None:
            return _ANY
        return self._min_gain * self._costs.ideal_gain(length=length)

    def _able(self, oldest: Version, is_exact: bool) -> list[_Tier]:
        return [tier for tier in self.open if tier.version == oldest or (tier.version > oldest and not is_exact)]

    def _close(self, oldest: Version) -> None:
        self.open = [tier for tier in self.open if tier.version < oldest]


class _Load:
    """An instance with its load, responses that this plan has routed to it included."""

    __slots__ = ("instance", "kv_tokens", "num_running", "room", "speed")

    def __init__(self, view: InstanceView, room: float, costs: CostModel) -> None:
        self.instance = view.instance
        self.num_running, self.kv_tokens = view.num_running, view.kv_tokens
        self.speed = costs.throughput(kv_tokens=view.kv_tokens, num_running=view.num_running)
        self.room = room
        """Number of responses that it may still get."""


class _Tier:
    """The instances of one version that have room, in a heap: by the largest gain, then the fewest responses, then the
    lowest number."""

    __slots__ = ("_budget", "_costs", "_heap", "_k5", "_new_length", "_refused", "version")

    def __init__(self, version: Version, policy: Waterfall, costs: CostModel, loads: list[_Load]) -> None:
        self.version, self._costs, self._k5 = version, costs, costs.k5
        self._budget, self._new_length = policy.kv_budget, policy.prompt_length
        self._refused: set[int] = set()
        """Lengths whose gain was too small. Loads only grow during a plan, so it stays too small."""
        gain, length = self._gain, policy.prompt_length
        self._heap = [(-gain(load, length), load.num_running, load.instance, load) for load in loads]
        heapify(self._heap)

    def best_gain(self, length: int) -> float:
        """Return the gain of a response on the first instance of the heap, or ``_NO_ROOM`` if the tier takes none of
        this length."""
        if not self._heap or length in self._refused:
            return _NO_ROOM
        return self._gain(self._heap[0][3], length)

    def take(self, length: int, enough: float) -> InstanceId | None:
        """Add a response to the best instance and return that instance; None if none gains ``enough``."""
        if not self._heap or length in self._refused:
            return None
        loss, _, number, load = self._heap[0]
        gain = -loss if length == self._new_length else self._gain(load, length)
        if self._is_enough(load, gain, enough):
            self._add(load, length, gain)
            return number
        # Later instances of the heap gain less, unless the first one only lacks room: another may have room.
        chosen = self._take_behind(length, enough) if gain == _NO_ROOM else None
        if chosen is None:
            self._refused.add(length)
        return chosen

    def _take_behind(self, length: int, enough: float) -> InstanceId | None:
        passed, chosen = [heappop(self._heap)], None
        while self._heap and len(passed) < _TRIES and chosen is None:
            load = self._heap[0][3]
            gain = self._gain(load, length)
            if self._is_enough(load, gain, enough):
                self._add(load, length, gain)
                chosen = load.instance
            else:
                passed.append(heappop(self._heap))
        for rank in passed:
            heappush(self._heap, rank)
        return chosen

    def _is_enough(self, load: _Load, gain: float, enough: float) -> bool:
        return gain >= enough or (gain > _NO_ROOM and self._costs.is_guess(load.num_running))

    def _add(self, load: _Load, length: int, gain: float) -> None:
        """Add a response to the first instance of the heap."""
        load.num_running += 1
        load.kv_tokens += self._k5 * length
        load.speed += gain
        load.room -= 1
        if load.room >= 1:
            rank = (-self._gain(load, self._new_length), load.num_running, load.instance, load)
            heapreplace(self._heap, rank)
        else:
            heappop(self._heap)

    def _gain(self, load: _Load, length: int) -> float:
        """Return the same as ``CostModel.gain``, computed from the known speed of the instance; ``_NO_ROOM`` if its KV
        cache has no room."""
        num_running, kv_tokens = load.num_running, load.kv_tokens + self._k5 * length
        # An idle instance takes any response: its engine can always hold one.
        if kv_tokens > self._budget and num_running:
            return _NO_ROOM
        return (num_running + 1) / step_s(self._costs, kv_tokens, num_running + 1) - load.speed


def _most_gain_first(tiers: list[_Tier], length: int) -> list[_Tier]:
    """Return the tiers sorted by gain, largest first; of equal gains, the older version first."""
    return tiers if len(tiers) < 2 else sorted(tiers, key=lambda tier: -tier.best_gain(length))
