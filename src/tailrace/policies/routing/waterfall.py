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

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.core.ids import InstanceId, Version
from tailrace.core.policy import FleetView, InstanceView, Route
from tailrace.policies.cost_model import CostModel

_RANKED_BITS = 3
"""Instances are ranked for lengths of so many binary digits, rounded up: four to each doubling. What is accepted is
judged by a response's own length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    costs: CostModel
    kv_budget: float = math.inf
    """Tokens the KV cache of an instance holds."""
    max_running: float = math.inf
    """Responses an instance generates at the same time."""
    min_gain: float = 0.3

    def route(self, view: FleetView) -> Iterator[Route]:
        tiers, admission = self._tiers(view.instances), view.admission.copy()
        closed = math.inf  # instances of this version or newer
        for group in view.queue:
            if not tiers or closed <= tiers[0].version:
                return
            version = group.version
            for member in group.members:
                needs = view.oldest_for_new if version is None else max(version, member.needs)
                newest = needs if group.is_exact else closed - 1
                able = (t for t in tiers if needs <= t.version <= newest)
                if version is None:
                    able = (t for t in able if admission.can_reserve(t.version))
                chosen = next((load for tier in able if (load := tier.take(member.length)) is not None), None)
                if chosen is not None:
                    if version is None:
                        version = chosen.version
                        admission.reserve(version)
                    yield Route(member.trajectory, chosen.instance)
                elif version is None:
                    return  # what is new has the same claim as what is behind it
                else:
                    closed = min(closed, needs)

    def _tiers(self, instances: Iterable[InstanceView]) -> list[_Tier]:
        """The oldest version first."""
        tiers: dict[Version, _Tier] = {}
        for view in instances:
            room = 0 if view.num_waiting else min(view.capacity, self.max_running) - view.num_responses
            load = _Load(view.instance, view.version, view.num_running, view.kv_tokens, room)
            tiers.setdefault(view.version, _Tier(view.version, self)).loads.append(load)
        return [tiers[version] for version in sorted(tiers)]

    def gain(self, load: _Load, length: float) -> float:
        """Tokens per second that a response of ``length`` tokens adds there; 0: it would queue."""
        if load.room < 1:
            return 0.0
        budget = self.kv_budget if load.num_running else math.inf
        return self.costs.gain(length=length, kv_tokens=load.kv_tokens, num_running=load.num_running, kv_budget=budget)


@dataclass(slots=True)
class _Load:
    """An instance as it is after what was routed to it."""

    instance: InstanceId
    version: Version
    num_running: int
    kv_tokens: float
    room: float
    """Responses it may still be given."""
    num_changes: int = 0
    """What was worked out before the last one is void."""


@dataclass(slots=True)
class _Tier:
    """The instances of one version, ranked by gain for each of a few lengths."""

    version: Version
    policy: Waterfall
    loads: list[_Load] = field(default_factory=list)
    ranks: dict[int, list[_Rank]] = field(default_factory=dict)

    def take(self, length: int) -> _Load | None:
        """The instance that gains most by it, which has it from now on; None: none gains enough."""
        policy, ranks = self.policy, self._ranks(length)
        best = self._best(*ranks)
        if policy.gain(best, length) < policy.min_gain * policy.costs.ideal_gain(length=length):
            return None
        best.num_running += 1
        best.kv_tokens += policy.costs.k5 * length
        best.room -= 1
        best.num_changes += 1
        return best

    def _ranks(self, length: int) -> tuple[int, list[_Rank]]:
        shift = max(0, length.bit_length() - _RANKED_BITS)
        ranked = ((length >> shift) + 1) << shift
        if ranked not in self.ranks:
            self.ranks[ranked] = [self._rank(load, ranked) for load in self.loads]
            heapq.heapify(self.ranks[ranked])
        return ranked, self.ranks[ranked]

    def _best(self, length: int, ranks: list[_Rank]) -> _Load:
        while ranks[0].num_changes != ranks[0].load.num_changes:
            heapq.heapreplace(ranks, self._rank(ranks[0].load, length))
        return ranks[0].load

    def _rank(self, load: _Load, length: int) -> _Rank:
        return _Rank(-self.policy.gain(load, length), load.num_running, load.instance, load.num_changes, load)


class _Rank(NamedTuple):
    """Most gain first, then the fewest responses, then the lowest number."""

    loss: float
    num_running: int
    instance: InstanceId
    num_changes: int
    load: _Load
