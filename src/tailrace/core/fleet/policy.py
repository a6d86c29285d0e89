"""The interface of policies: a policy gets a read-only view of the fleet and returns its decision. It remembers
nothing: what it chooses follows from its view.

A view contains only instances that accept work and have no outstanding interrupt or abort. The load of an instance
includes every command sent to it so far, whether or not it has reported back.

A policy also says when it is asked. One that is *planned* is asked at intervals (``core/fleet/planning.py``), and
``InstanceView.num_waiting`` is known to it. One that is not planned is cheap, and is asked after every event.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from tailrace.core.costs import CostModel
from tailrace.core.fleet.parallelism import ParallelismPolicy
from tailrace.core.fleet.scaling import ScalingPolicy
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.ledger.admission import Overlay
from tailrace.core.rewards.policy import TimeoutPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """One instance and its load."""

    instance: InstanceId
    version: Version
    """Version of its weights."""
    num_responses: int
    """Unfinished responses that it has."""
    capacity: int
    """Most responses it may have at the same time."""
    num_waiting: int = 0
    """How many of its responses are queued inside it because its KV cache or batch is full. 0 if no policy is
    planned."""
    kv_tokens: float = 0.0
    """Tokens of KV cache that its running responses hold: their tokens, prompts included, times ``k5`` of the cost
    model."""
    is_rested: bool = True
    """Whether its last migration is at least ``pause_s`` ago."""

    @property
    def num_running(self) -> int:
        """How many of its responses it generates at the moment."""
        return self.num_responses - self.num_waiting


class WaitingGroup(NamedTuple):
    """The queued members of one group. Stored in columns, because a view may hold many thousands of members."""

    group: GroupId
    version: Version | None
    """Oldest version that may have generated its tokens; None: the group is new and none of its members has a token."""
    responses: tuple[ResponseId, ...]
    """The queued members."""
    lengths: tuple[int, ...]
    """Tokens of each member, prompt included."""
    needs: tuple[Version, ...]
    """Oldest version that may continue each member. In a new group each is 0, because no token binds a member to a
    version; ``FleetView.oldest_for_new`` and ``FleetView.admission`` say which versions may start the group."""
    is_exact: bool = False
    """Whether only ``version`` itself may generate it, as for an evaluation."""
    homes: tuple[InstanceId | None, ...] = ()
    """The instance that each was last given to, if it is still there; empty: routing does not ask for it."""

    @property
    def members(self) -> Iterator[tuple[ResponseId, int, Version]]:
        """Return (response, length, oldest version that may continue it) of each member."""
        return zip(self.responses, self.lengths, self.needs, strict=True)

    def without(self, gone: Container[ResponseId], version: Version | None) -> WaitingGroup | None:
        """Return this group without the members in ``gone``, and with this version; None if no member is left."""
        rows = [row for row in self.members if row[0] not in gone]
        if not rows:
            return None
        homes = tuple([home for r, home in zip(self.responses, self.homes, strict=False) if r not in gone])
        responses, lengths, needs = zip(*rows, strict=True)
        return WaitingGroup(self.group, version, responses, lengths, needs, self.is_exact, homes)


class Route(NamedTuple):
    """A routing decision: member i of ``responses``, all of one group, goes to instance i of ``instances``."""

    group: GroupId
    responses: Sequence[ResponseId]
    instances: Sequence[InstanceId]

    @property
    def places(self) -> Iterator[tuple[ResponseId, InstanceId]]:
        """Return each member with its instance."""
        return zip(self.responses, self.instances, strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Versions that could serve at least one queued response, however loaded the instances are."""

    exact: frozenset[Version] = frozenset()
    """Versions with queued evaluations: only an instance of such a version may take them."""
    least_needed: Version | None = None
    """Oldest version that may continue at least one queued response."""
    most_needed: Version | None = None
    """Oldest version that may continue every queued response, evaluations included."""
    has_new: bool = False
    """Whether a new group is queued."""

    @classmethod
    def of(cls, queue: Iterable[WaitingGroup]) -> Claims:
        exact: set[Version] = set()
        needed: set[Version] = set()
        has_new = False
        for group in queue:
            if group.version is None:
                has_new = True
            elif group.is_exact:
                exact.add(group.version)
            else:
                needed.update(group.needs)
        most_needed = max(needed | exact, default=None)
        return cls(
            exact=frozenset(exact),
            least_needed=min(needed, default=None),
            most_needed=most_needed,
            has_new=has_new,
        )

    def lets_in(self, version: Version, *, may_begin: bool) -> bool:
        """Whether an instance of this version may take a queued response. ``may_begin``: it may start new groups."""
        if version in self.exact or (self.least_needed is not None and version >= self.least_needed):
            return True
        return self.has_new and may_begin


class Backlog(Protocol):
    """Queued and running responses. They do not change while a policy decides."""

    def queue(self) -> Iterable[WaitingGroup]:
        """Return the queued groups by priority: evaluations, then started groups from the oldest version, then new
        groups."""
        ...

    def claims(self) -> Claims:
        """Return which versions could serve the queue."""
        ...

    def running(self, instance: InstanceId) -> Sequence[WaitingGroup]:
        """Return the responses of an instance in the form they would have in the queue if it were interrupted now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """What a policy sees."""

    costs: CostModel
    """Cost model of every instance, as it was last measured."""
    instances: Sequence[InstanceView]
    backlog: Backlog
    admission: Overlay
    """Free places in the ledger: which versions may start a new group. Work on a ``copy`` to try reservations."""
    oldest_for_new: Version
    """Oldest version that may start a new group. The ledger must admit it too."""
    published: Version
    """Newest version that instances can pull."""
    newest: Version
    """Newest version that any instance holds or is about to pull, busy ones included."""

    @property
    def queue(self) -> Iterable[WaitingGroup]:
        """The queued groups by priority."""
        return self.backlog.queue()

    def speed(self, instance: InstanceView) -> float:
        """Return the expected tokens per second of an instance."""
        return self.costs.throughput(kv_tokens=instance.kv_tokens, num_running=instance.num_running)


class RoutingPolicy(Protocol):
    """Chooses instances for queued responses. A response that is not routed stays queued."""

    is_planned: ClassVar[bool]
    """Whether it is asked only when a plan is due."""
    needs_homes: ClassVar[bool]
    """Whether it reads ``WaitingGroup.homes``. Others get empty ones."""

    def route(self, view: FleetView) -> Iterable[Route]: ...


class SynchronizationPolicy(Protocol):
    """Chooses instances that interrupt their responses and pull the published version. Asked only without rounds."""

    is_planned: ClassVar[bool]
    """Whether it is asked only when a plan is due."""

    def choose(self, view: FleetView) -> Iterable[InstanceId]: ...


class MigrationPolicy(Protocol):
    """Chooses how many of an instance's youngest responses return to the queue, to continue on another instance."""

    is_planned: ClassVar[bool]
    """Whether it moves anything. Only plans move responses, so a policy that is not planned is never asked."""

    def choose(self, view: FleetView) -> Iterable[tuple[InstanceId, int]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The policies of a run."""

    routing: RoutingPolicy
    synchronization: SynchronizationPolicy
    migration: MigrationPolicy
    timeouts: TimeoutPolicy
    scaling: ScalingPolicy
    parallelism: ParallelismPolicy

    @property
    def plans(self) -> bool:
        """Whether a policy is planned."""
        return self.routing.is_planned or self.synchronization.is_planned or self.migration.is_planned
