"""Give each response to where it adds most to the tokens per second, the stalest first, or let it wait.

What waits has levels: the oldest version first, what is new last. For a response, the instances that may take it fall
into tiers of one version each. The oldest tier is tried first, for it has the fewest uses; within a tier the instance
wins that gains most. A tier is passed over if its best gain is below ``min_gain`` of the ideal, that of an idle
instance. If every tier is, the response waits, and so does everything behind it that could take its place: the
instances that may generate it are closed for the rest. Others are not, so nobody idles for the sake of a response that
it could not help.

An idle instance always gains the ideal: whatever may run somewhere does not wait for ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

from tailrace.core.ids import InstanceId, Version
from tailrace.core.policy import FleetView, InstanceView, Route
from tailrace.policies.cost_model import CostModel, step_s

_TRIES = 4
"""Instances of a tier that are looked at for room in their KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    costs: CostModel
    kv_budget: float = math.inf
    """Tokens the KV cache of an instance holds."""
    max_running: float = math.inf
    """Responses an instance generates at the same time."""
    min_gain: float = 0.3
    prompt_length: int = 0
    """Tokens of a new response. Instances are tried in the order of what one would gain there."""

    def route(self, view: FleetView) -> Iterator[Route]:
        tiers, admission = self._tiers(view.instances), view.admission.copy()
        for group in view.queue:
            version, able, able_from = group.version, tiers, -1
            for trajectory, length, needs in group.members:
                oldest = view.oldest_for_new if version is None else max(version, needs)
                if oldest != able_from:
                    able = [tier for tier in tiers if tier.version >= oldest]
                    able_from = oldest
                    if version is None:
                        able = [tier for tier in able if admission.can_reserve(tier.version)]
                    elif group.is_exact:
                        able = [tier for tier in able if tier.version == oldest]
                for tier in able:
                    if (chosen := tier.take(length)) is not None:
                        if version is None:
                            version, able_from = tier.version, -1
                            admission.reserve(version)
                        yield Route(trajectory, chosen)
                        break
                else:
                    if version is None:
                        return  # what is new has the same claim as what is behind it
                    tiers = [tier for tier in tiers if tier.version < oldest]
                    able_from = -1
            if not tiers:
                return

    def _tiers(self, instances: Iterable[InstanceView]) -> list[_Tier]:
        """The oldest version first."""
        loads: dict[Version, list[_Load]] = {}
        for view in instances:
            room = 0 if view.num_waiting else min(view.capacity, self.max_running) - view.num_responses
            if room >= 1:
                loads.setdefault(view.version, []).append(_Load(view, room, self.costs))
        return [_Tier(version, self, loads[version]) for version in sorted(loads)]


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

    __slots__ = ("_budget", "_costs", "_enough", "_heap", "_k5", "_new_length", "_policy", "version")

    def __init__(self, version: Version, policy: Waterfall, loads: list[_Load]) -> None:
        self.version, self._policy, self._costs, self._k5 = version, policy, policy.costs, policy.costs.k5
        self._budget, self._new_length = policy.kv_budget, policy.prompt_length
        self._enough: dict[int, float] = {}
        gain, length = self._gain, policy.prompt_length
        self._heap = [(-gain(load, length), load.num_running, load.instance, load) for load in loads]
        heapify(self._heap)

    def take(self, length: int) -> InstanceId | None:
        """The instance that takes the response and has it from now on; None: none gains enough."""
        enough = self._enough.get(length) or self._work_out(length)
        if enough == math.inf or not self._heap:
            return None
        loss, _, _, load = self._heap[0]
        gain = -loss if length == self._new_length else self._gain(load, length)
        if gain >= enough:
            self._add(load, length, gain)
            return load.instance
        # Those behind gain less, unless it is for want of room that this one gains nothing: another may have it.
        chosen = self._take_behind(length) if gain == 0 else None
        if chosen is None:
            self._enough[length] = math.inf  # loads only grow: none ever will
        return chosen

    def _take_behind(self, length: int) -> InstanceId | None:
        passed = [heappop(self._heap)]
        chosen, enough = None, self._enough[length]
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

    def _work_out(self, length: int) -> float:
        self._enough[length] = self._policy.min_gain * self._costs.ideal_gain(length=length)
        return self._enough[length]
