"""Synchronization policy that lets an instance pull only if the pull costs little, or makes queued work possible.

A pull interrupts all responses of an instance, and all their tokens are prefilled again. An instance pulls at once

* if it is idle;
* if a newer instance has more than ``max_gap`` times its throughput, because work can move to it only after its pull;
* if it has responses queued inside it, because they can then run elsewhere.

Any other instance pulls only if both conditions hold:

1. No queued response may go to it at its current version.
2. After its pull at least one would: with its own responses back in the queue at their old places, and everything
   routed by the routing policy.

These candidates are tested one after another, those with the least work first. Each test starts from the result of the
one before, so a few queued responses do not make every instance pull.

Two cases come first. If no instance, and none that is about to pull, may take some queued work, instances pull for it
at once (after the loss of an instance the newest version may be missing). And an evaluation needs the newest version,
so all older instances may pull for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import ClassVar, Self

from tailrace.core.fleet.policy import Backlog, Claims, FleetView, InstanceView, Route, RoutingPolicy, WaitingGroup
from tailrace.core.ids import InstanceId, Version
from tailrace.core.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class WhenUseful:
    is_planned: ClassVar[bool] = True

    routing: RoutingPolicy
    max_gap: float = 5.0
    patience: int = 4
    """Stop after this many candidates in a row whose pull would not help. The remaining ones have more work to lose."""
    max_trials: int = 32
    """Most candidates that are tested in one plan, to limit its duration."""

    @classmethod
    def of(cls, schedule: Schedule, routing: RoutingPolicy) -> Self:
        return cls(routing=routing, max_gap=schedule.coordination.max_gap)

    def choose(self, view: FleetView) -> list[InstanceId]:
        behind = [i for i in view.instances if i.version < view.published]
        if not behind:
            return []
        behind.sort(key=lambda i: (i.num_responses, i.instance))
        claims = view.backlog.claims()
        if claims.most_needed is not None and claims.most_needed > view.newest:
            return [behind[0].instance]
        if ready := self._better_off(behind, view):
            return ready
        candidates = behind if claims.exact else [i for i in behind if not _may_any_go(view, claims, i.version)]
        if not candidates or not _may_any_go(view, claims, view.published):
            return []
        outlook = _Outlook.of(view)
        outlook.follow(self.routing.route(outlook.view()))
        left = outlook.claims()
        may_go = _may_any_go(outlook.view(), left, view.published)
        return self._useful(candidates[: self.max_trials], outlook) if may_go else []

    def _better_off(self, behind: Iterable[InstanceView], view: FleetView) -> list[InstanceId]:
        fastest: dict[Version, float] = {}
        for each in view.instances:
            fastest[each.version] = max(view.speed(each), fastest.get(each.version, 0.0))
        return [
            i.instance
            for i in behind
            if not i.num_responses
            or i.num_waiting
            or max((fastest[v] for v in fastest if v > i.version), default=0.0) > self.max_gap * view.speed(i)
        ]

    def _useful(self, candidates: Sequence[InstanceView], outlook: _Outlook) -> list[InstanceId]:
        chosen: list[InstanceId] = []
        num_useless = 0
        for candidate in candidates:
            if num_useless == self.patience or outlook.is_idle:
                break
            running = outlook.running(candidate.instance)
            trial = outlook.pulled(candidate.instance, running)
            routes = tuple(self.routing.route(trial.view()))
            own = {response for group in running for response in group.responses}
            places = (place for route in routes for place in route.places)
            if any(number == candidate.instance and response not in own for response, number in places):
                outlook, num_useless = trial, 0
                outlook.follow(routes)
                chosen.append(candidate.instance)
            else:
                num_useless += 1
        return chosen


def _may_any_go(view: FleetView, claims: Claims, version: Version) -> bool:
    """Whether an instance of this version may take a queued response, whatever its load."""
    may_begin = version >= view.oldest_for_new and view.admission.can_reserve(version)
    return claims.lets_in(version, may_begin=may_begin)


class _Outlook:
    """A hypothetical fleet, after routes and pulls that are only tried out.

    The queue is kept in two parts: started groups and new groups. The second may be long, but mostly only its first
    groups are read.
    """

    def __init__(self, view: FleetView, begun: list[WaitingGroup], new: list[WaitingGroup], backlog: Backlog) -> None:
        self._view, self._begun, self._new, self._backlog = view, begun, new, backlog

    @classmethod
    def of(cls, view: FleetView) -> _Outlook:
        queue = list(view.queue)
        return cls(
            view, [g for g in queue if g.version is not None], [g for g in queue if g.version is None], view.backlog
        )

    def view(self) -> FleetView:
        return replace(self._view, backlog=self)

    def queue(self) -> Iterable[WaitingGroup]:
        return chain(self._begun, self._new)

    def claims(self) -> Claims:
        return Claims.of(self.queue())

    @property
    def is_idle(self) -> bool:
        """Whether the queue is empty."""
        return not self._begun and not self._new

    def running(self, instance: InstanceId) -> Sequence[WaitingGroup]:
        return self._backlog.running(instance)

    def follow(self, routes: Iterable[Route]) -> None:
        """Move the routed responses from the queue to their instances."""
        routes = tuple(routes)
        if not routes:
            return
        places, touched = dict(p for route in routes for p in route.places), {route.group for route in routes}
        versions, admission = {i.instance: i.version for i in self._view.instances}, self._view.admission.copy()
        lengths: dict[InstanceId, list[int]] = {}
        begun, new = list[WaitingGroup](), list[WaitingGroup]()
        for group in chain(self._begun, self._new):
            left: WaitingGroup | None = group
            if group.group in touched:
                gone = [(places[t], length) for t, length, _ in group.members if t in places]
                for number, length in gone:
                    lengths.setdefault(number, []).append(length)
                version = group.version
                if version is None and gone:
                    version = versions[gone[0][0]]
                    admission.reserve(version)
                left = group.without(places, version)
            if left is not None:
                (new if left.version is None else begun).append(left)
        instances = [self._loaded(i, lengths.get(i.instance, ())) for i in self._view.instances]
        self._view = replace(self._view, instances=instances, admission=admission)
        self._begun, self._new = begun, new

    def _loaded(self, instance: InstanceView, lengths: Sequence[int]) -> InstanceView:
        if not lengths:
            return instance
        kv_tokens = instance.kv_tokens + self._view.costs.k5 * sum(lengths)
        return replace(instance, num_responses=instance.num_responses + len(lengths), kv_tokens=kv_tokens)

    def pulled(self, number: InstanceId, running: Iterable[WaitingGroup]) -> _Outlook:
        """Return the fleet after a pull of this instance: its ``running`` responses are queued, and it is empty."""
        instances = [
            replace(i, version=self._view.published, num_responses=0, num_waiting=0, kv_tokens=0.0)
            if i.instance == number
            else i
            for i in self._view.instances
        ]
        begun = sorted([*_merged(running), *self._begun], key=_claim)
        return _Outlook(replace(self._view, instances=instances), begun, self._new, self._backlog)


def _merged(groups: Iterable[WaitingGroup]) -> Iterator[WaitingGroup]:
    """Merge started groups with the same priority into one group: routing treats them alike, and is faster."""
    for _, same in groupby(sorted(groups, key=_claim), key=_claim):
        parts = list(same)
        yield parts[0]._replace(
            responses=tuple(chain.from_iterable(part.responses for part in parts)),
            lengths=tuple(chain.from_iterable(part.lengths for part in parts)),
            needs=tuple(chain.from_iterable(part.needs for part in parts)),
        )


def _claim(group: WaitingGroup) -> tuple[bool, int]:
    return (not group.is_exact, group.version or 0)
