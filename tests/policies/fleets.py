"""Fleets made by hand, for policies to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailrace.core.costs import CostModel
from tailrace.core.fleet.policy import Claims, FleetView, InstanceView, WaitingGroup
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.ledger.admission import AdmissionRule, LedgerRules, Overlay

BOUND = 2
COSTS = CostModel(k1=1e-6, k2=0.01, k3=0.001, k4=0.01)
"""Ten responses fill the weights' reading time; beyond, each one more adds less and less."""


class FixedBacklog:
    """A backlog written down by a test."""

    def __init__(self, queue: Sequence[WaitingGroup], running: Mapping[int, Sequence[WaitingGroup]]) -> None:
        self._queue, self._running = queue, running

    def queue(self) -> Sequence[WaitingGroup]:
        return self._queue

    def claims(self) -> Claims:
        return Claims.of(self._queue)

    def running(self, instance: InstanceId) -> Sequence[WaitingGroup]:
        return self._running.get(instance, ())


def instance(number: int, *, version: int = 0, responses: int = 0, kv: float = 0.0, **other: object) -> InstanceView:
    fields = {"capacity": 1000, **other}
    return InstanceView(
        instance=InstanceId(number), version=Version(version), num_responses=responses, kv_tokens=kv, **fields
    )


def new(prompt: int, *, members: int = 1, length: int = 10) -> WaitingGroup:
    return _group(prompt, None, 0, members, length)


def begun(
    prompt: int, *, version: int, needs: int | None = None, members: int = 1, length: int = 10, exact: bool = False
) -> WaitingGroup:
    return _group(prompt, Version(version), version if needs is None else needs, members, length, exact)


def _group(
    prompt: int, version: Version | None, needs: int, members: int, length: int, exact: bool = False
) -> WaitingGroup:
    group = GroupId("heldout" if exact else "train", 0, prompt)
    waiting = tuple(ResponseId(group, member) for member in range(members))
    return WaitingGroup(group, version, waiting, (length,) * members, (Version(needs),) * members, exact)


def view(
    instances: Sequence[InstanceView],
    queue: Sequence[WaitingGroup],
    *,
    free: int | None = None,
    current: int | None = None,
    published: int = 0,
    newest: int | None = None,
    running: Mapping[int, Sequence[WaitingGroup]] | None = None,
    costs: CostModel = COSTS,
) -> FleetView:
    """``free``: groups that may still begin, whatever their version; ``current``: the batch that is collected, where
    a version more than two behind may begin nothing; without either anything may begin."""
    return FleetView(
        costs=costs,
        instances=instances,
        backlog=FixedBacklog(queue, running or {}),
        admission=_admission(free, current),
        oldest_for_new=Version(0),
        published=Version(published),
        newest=Version(max((i.version for i in instances), default=0) if newest is None else newest),
    )


def _admission(free: int | None, current: int | None) -> Overlay:
    if current is not None:
        rules = LedgerRules(batch_size=100, max_staleness=BOUND, admission=AdmissionRule.DEADLINE, capacity=100)
        return Overlay(rules, current, [100] * (BOUND + 1))
    rules = LedgerRules(batch_size=1, max_staleness=0, admission=AdmissionRule.COUNT, capacity=max(free or 1, 1))
    return Overlay(rules, 0, None if free is None else [free])
