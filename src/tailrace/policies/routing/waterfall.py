"""Give each response to where it adds most to the tokens per second, the stalest first, or let it wait.

What waits has levels: the oldest version first, what is new last. For a response, the instances that may take it fall
into tiers of one version each, and within a tier the instance wins that gains most. What is new tries the oldest tier
first, for it has the fewest uses. What was begun tries the tier first that gains most: were it the oldest, whatever
migration takes from a loaded instance that is behind would go straight back to it, for ever, while newer ones idle.

A tier is passed over if its best gain is below ``min_gain`` of the ideal, that of an idle instance. If every tier is,
the response waits, and so does everything behind it that could take its place: the instances that may generate it are
closed for the rest. Others are not, so nobody idles for the sake of a response that it could not help.

An idle instance always gains the ideal: whatever may run somewhere does not wait for ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

from tailrace.core.admission import Overlay
from tailrace.core.costs import CostModel, step_s
from tailrace.core.ids import InstanceId, TrajectoryId, Version
from tailrace.core.policy import FleetView, InstanceView, Route, WaitingGroup

_TRIES = 4
"""Instances of a tier that are looked at for room in their KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    kv_budget: float = math.inf
    """Tokens the KV cache of an instance holds."""
    max_running: float = math.inf
    """Responses an instance generates at the same time."""
    min_gain: float = 0.3
    prompt_length: int = 0
    """Tokens of a new response. Instances are tried in the order of what one would gain there."""

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
                return  # what is new has the same claim as what is behind it


class _Tiers:
    """Those that are not closed, the oldest version first."""

    def __init__(self, policy: Waterfall, view: FleetView) -> None:
        loads: dict[Version, list[_Load]] = {}
        for each in view.instances:
            room = 0 if each.num_waiting else min(each.capacity, policy.max_running) - each.num_responses
            if room >= 1:
                loads.setdefault(each.version, []).append(_Load(each, room, view.costs))
        self.open = [_Tier(version, policy, view.costs, loads[version]) for version in sorted(loads)]
        self._costs, self._min_gain = view.costs, policy.min_gain

    def begin(self, group: WaitingGroup, oldest: Version, admission: Overlay) -> Route | None:
        """The first tier that takes any of its members gives the group its version. None of them has a token yet, so
        they are alike: a tier takes as many as it can, and the next ones what is left."""
        length, num_members, version = group.lengths[0], len(group.trajectories), None
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
        return Route(group.group, group.trajectories[: len(chosen)], chosen)

    def go_on(self, group: WaitingGroup, version: Version) -> Route | None:
        """Where the members of a group of this version go that do not wait any longer."""
        if self.open[-1].version < min(group.needs):
            return None  # all of it waits for an instance that is not here, and closes none
        going, chosen = list[TrajectoryId](), list[InstanceId]()
        able, able_from = self.open, None
        for trajectory, length, needs in group.members:
            oldest = needs if needs > version else version
            if oldest != able_from:
                able, able_from = self._able(oldest, group.is_exact), oldest
            enough = self._enough(length) if able else math.inf
            for tier in _most_gain_first(able, length):
                if (number := tier.take(length, enough)) is not None:
                    going.append(trajectory)
                    chosen.append(number)
                    break
            else:
                self._close(oldest)
                able = []
        return Route(group.group, going, chosen) if going else None

    def _enough(self, length: int) -> float:
        """The gain below which a response of so many tokens rather waits."""
        return self._min_gain * self._costs.ideal_gain(length=length)

    def _able(self, oldest: Version, is_exact: bool) -> list[_Tier]:
        return [tier for tier in self.open if tier.version == oldest or (tier.version > oldest and not is_exact)]

    def _close(self, oldest: Version) -> None:
        self.open = [tier for tier in self.open if tier.version < oldest]


class _Load:
    """An instance as it is after what was routed to it."""

    __slots__ = ("instance", "kv_tokens", "num_running", "room", "speed")

    def __init__(self, view: InstanceView, room: float, costs: CostModel) -> None:
        self.instance = view.instance
        self.num_running, self.kv_tokens = view.num_running, view.kv_tokens
        self.speed = costs.throughput(kv_tokens=view.kv_tokens, num_running=view.num_running)
        self.room = room
        """Responses it may still be given."""


class _Tier:
    """The instances of one version that have room, in a heap: the most gain first, then the fewest responses, then the
    lowest number."""

    __slots__ = ("_budget", "_costs", "_heap", "_k5", "_new_length", "_refused", "version")

    def __init__(self, version: Version, policy: Waterfall, costs: CostModel, loads: list[_Load]) -> None:
        self.version, self._costs, self._k5 = version, costs, costs.k5
        self._budget, self._new_length = policy.kv_budget, policy.prompt_length
        self._refused: set[int] = set()
        """Lengths that gain too little: loads only grow, so they always will."""
        gain, length = self._gain, policy.prompt_length
        self._heap = [(-gain(load, length), load.num_running, load.instance, load) for load in loads]
        heapify(self._heap)

    def best_gain(self, length: int) -> float:
        """Of the first instance of the heap; below 0 if the tier takes no such response."""
        if not self._heap or length in self._refused:
            return -1.0
        return self._gain(self._heap[0][3], length)

    def take(self, length: int, enough: float) -> InstanceId | None:
        """The instance that takes the response and has it from now on; None: none gains ``enough``."""
        if not self._heap or length in self._refused:
            return None
        loss, _, number, load = self._heap[0]
        gain = -loss if length == self._new_length else self._gain(load, length)
        if gain >= enough:
            self._add(load, length, gain)
            return number
        # Those behind gain less, unless it is for want of room that this one gains nothing: another may have it.
        chosen = self._take_behind(length, enough) if gain == 0 else None
        if chosen is None:
            self._refused.add(length)
        return chosen

    def _take_behind(self, length: int, enough: float) -> InstanceId | None:
        passed, chosen = [heappop(self._heap)], None
        while self._heap and len(passed) < _TRIES and chosen is None:
            load = self._heap[0][3]
            if (gain := self._gain(load, length)) >= enough:
                self._add(load, length, gain)
                chosen = load.instance
            else:
                passed.append(heappop(self._heap))
        for rank in passed:
            heappush(self._heap, rank)
        return chosen

    def _add(self, load: _Load, length: int, gain: float) -> None:
        """To the first of the heap."""
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
        """As the cost model has it, from a speed that is known already."""
        num_running, kv_tokens = load.num_running, load.kv_tokens + self._k5 * length
        # An idle instance takes whatever it may: its engine can hold any one response.
        if kv_tokens > self._budget and num_running:
            return 0.0
        return (num_running + 1) / step_s(self._costs, kv_tokens, num_running + 1) - load.speed


def _most_gain_first(tiers: list[_Tier], length: int) -> list[_Tier]:
    """Of two that gain the same, the older one."""
    return tiers if len(tiers) < 2 else sorted(tiers, key=lambda tier: -tier.best_gain(length))
