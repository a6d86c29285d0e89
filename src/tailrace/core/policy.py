"""What a policy may see, and what it may answer: a frozen view in, a choice out.

Views hold instances that owe the core nothing: they accept work, and nothing of theirs is being stopped. What the
core knows of an instance already counts every command it was sent, so a view is never behind the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tailrace.core.admission import Overlay
from tailrace.core.costs import CostModel
from tailrace.core.ids import GroupId, InstanceId, TrajectoryId, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    instance: InstanceId
    version: Version
    num_responses: int
    """It was given and has not ended."""
    capacity: int
    """Responses it may be given at the same time."""
    num_waiting: int = 0
    """Of its responses: those that wait inside it for room."""
    kv_tokens: float = 0.0
    """Tokens of the KV cache that the others hold."""
    is_rested: bool = True
    """It has not given work away for a while."""

    @property
    def num_running(self) -> int:
        return self.num_responses - self.num_waiting


class WaitingGroup(NamedTuple):
    """The members of a group that wait for an instance, in columns: a view may hold many thousands of them."""

    group: GroupId
    version: Version | None
    """The oldest version its tokens may come from; None: it is new, and its members are all alike."""
    trajectories: tuple[TrajectoryId, ...]
    lengths: tuple[int, ...]
    """Tokens each of them has, with its prompt."""
    needs: tuple[Version, ...]
    """The oldest version that may go on with each; of no meaning if the group is new."""
    is_exact: bool = False
    """Only this version may generate it: an evaluation."""

    @property
    def members(self) -> Iterator[tuple[TrajectoryId, int, Version]]:
        """Row by row."""
        return zip(self.trajectories, self.lengths, self.needs, strict=True)

    def without(self, gone: Container[TrajectoryId], version: Version | None) -> WaitingGroup | None:
        """What still waits, in a group that is of this version by now; None: nothing does."""
        rows = [row for row in self.members if row[0] not in gone]
        if not rows:
            return None
        trajectories, lengths, needs = zip(*rows, strict=True)
        return WaitingGroup(self.group, version, trajectories, lengths, needs, self.is_exact)


class Route(NamedTuple):
    """Members of one group go to instances, the first to the first and so on."""

    group: GroupId
    trajectories: Sequence[TrajectoryId]
    instances: Sequence[InstanceId]

    @property
    def places(self) -> Iterator[tuple[TrajectoryId, InstanceId]]:
        return zip(self.trajectories, self.instances, strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What waits, in so far as it says which versions may take any of it, however loaded they are."""

    exact: frozenset[Version] = frozenset()
    """Versions that are to be evaluated."""
    least_needed: Version | None = None
    """The oldest version that may go on with something that was begun."""
    most_needed: Version | None = None
    """The oldest that may go on with everything that was begun, evaluations among it."""
    has_new: bool = False

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
        """Whether an instance of this version may take anything, if it ``may_begin`` what is new or may not."""
        if version in self.exact or (self.least_needed is not None and version >= self.least_needed):
            return True
        return self.has_new and may_begin


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    costs: CostModel
    """Of every instance, as they were last measured."""
    instances: Sequence[InstanceView]
    queue: Iterable[WaitingGroup]
    """What has the first claim comes first: evaluations, then the oldest versions, then what is new. Read it once."""
    claims: Callable[[], Claims]
    """The same in brief."""
    admission: Overlay
    """Which versions may begin something new. Not to be changed: take a copy."""
    oldest_for_new: Version
    """That may begin something new, whatever the ledger admits."""
    published: Version = Version(0)
    """The newest version instances can pull."""
    newest: Version = Version(0)
    """Of the versions that instances hold or are on their way to, those that owe something too."""
    running: Callable[[InstanceId], Sequence[WaitingGroup]] = lambda _: ()
    """What an instance generates, as it would wait if it were interrupted now."""

    def speed(self, instance: InstanceView) -> float:
        """Tokens per second it is expected to generate."""
        return self.costs.throughput(kv_tokens=instance.kv_tokens, num_running=instance.num_running)


class RoutingPolicy(Protocol):
    """Which instance generates what waits. What is not routed waits for the next time."""

    def route(self, view: FleetView) -> Iterable[Route]: ...


class SynchronizationPolicy(Protocol):
    """Which instances stop what they do and pull the published version."""

    def choose(self, view: FleetView) -> Iterable[InstanceId]: ...


class MigrationPolicy(Protocol):
    """How many of its youngest responses an instance gives back, so that they may go on elsewhere."""

    def choose(self, view: FleetView) -> Iterable[tuple[InstanceId, int]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    routing: RoutingPolicy
    synchronization: SynchronizationPolicy
    migration: MigrationPolicy
