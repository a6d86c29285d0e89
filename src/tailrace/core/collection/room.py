"""The collection room: which prompts become groups, and which groups make up the batch of the next step."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from tailrace.core.collection.filtering import FilteredShare
from tailrace.core.collection.round import Round
from tailrace.core.collection.speculation import Search
from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.core.ledger.admission import Overlay
from tailrace.core.ledger.ledger import Ledger
from tailrace.core.requests import OpenRequest
from tailrace.core.responses.group import Group, GroupPhase
from tailrace.core.responses.response import Response
from tailrace.core.run.waits import Wait
from tailrace.core.schedule import Limits, Schedule

MAX_RELIEFS = 20
"""The run fails if groups are restarted or dropped after ``max_stuck_s`` this many times without a batch in between."""
_ANY, _NEVER = Version(0), Version(2**62)


@dataclass(slots=True, kw_only=True)
class Streaks:
    """Counts of failures in a row. A success sets its counter back to 0."""

    num_dropped: int = 0
    """Groups dropped since the last complete group."""
    num_useless: int = 0
    """Groups dropped or filtered since the last complete group."""
    num_reliefs: int = 0
    """How often groups were restarted or dropped after ``max_stuck_s`` since the last batch."""


@dataclass(slots=True, kw_only=True)
class Collection:
    """State of the collection room."""

    ledger: Ledger
    """Which groups may start, and which batch they belong to. Its current batch is the next one to be collected."""
    cursor: tuple[int, int] = (0, 0)
    """(epoch, offset) of the training source."""
    requested: OpenRequest | None = None
    """The request for training prompts that is not answered yet; None: there is none."""
    held: dict[GroupId, str] = field(default_factory=dict)
    """Offered prompts, with their domains, that have not started: their previous group is unfinished, or the round had
    no room for them."""
    round: Round | None = None
    """The current round. None between rounds, and always with `keep`."""
    search: Search = field(default_factory=Search)
    """Durations of rounds so far, for schedules that try out several amounts of over-provisioning."""
    filtered_share: FilteredShare = field(default_factory=FilteredShare)
    """Estimated share of groups that dynamic sampling filters."""
    queue: dict[GroupId, None] = field(default_factory=dict)
    """The long queue: deferred groups, in the order they were deferred."""
    late: dict[GroupId, None] = field(default_factory=dict)
    """Deferred groups that started late in their round. The next short round takes them first."""
    complete: dict[GroupId, None] = field(default_factory=dict)
    """Groups that are ready for a batch."""
    num_live: int = 0
    """Groups that are open or complete."""
    surplus: dict[ResponseId, Response] = field(default_factory=dict)
    """Responses of complete groups that are not needed and will be aborted."""
    unreported: dict[GroupId, GroupPhase] = field(default_factory=dict)
    """Groups that were filtered or dropped and have not been reported yet."""
    stuck_since: float | None = None
    """Since when the trainer waits for unfinished groups of its batch. Set only if ``max_stuck_s`` is."""
    streaks: Streaks = field(default_factory=Streaks)

    # Questions

    @property
    def awaits_prompts(self) -> bool:
        return self.requested is not None

    def surplus_ids(self) -> set[ResponseId]:
        return set(self.surplus)

    @property
    def progress(self) -> tuple[int, int, int] | None:
        """Number of the round, its complete groups and the size of its batch; None if there is no round, or if it
        launched more than it trains: then no group is waited for in particular."""
        round = self.round
        if round is None or round.size > round.batch_size:
            return None
        return round.number, len(self.complete), round.batch_size

    @property
    def is_round_long(self) -> bool:
        return self.round is not None and self.round.is_long

    @property
    def committed_groups(self) -> AbstractSet[GroupId]:
        """Complete groups that are being trained, or were, before their batch is full."""
        return self.ledger.committed.keys()

    def admission(self) -> Overlay:
        """Return a light copy of the ledger, for planning."""
        return self.ledger.overlay()

    def can_begin(self, version: Version) -> bool:
        """Whether the ledger admits a new group of this version."""
        return self.ledger.can_reserve(version)

    def is_open(self, schedule: Schedule) -> bool:
        """Whether instances may be given work for training."""
        return self.round is not None or not schedule.has_rounds

    @property
    def oldest_in_round(self) -> Version:
        """Oldest version that may generate tokens for the current round; if there is no round, any version may."""
        return _ANY if self.round is None else self.round.version

    def oldest_for_new(self, schedule: Schedule, published: Version) -> Version:
        """Return the oldest version that may start a new group. The ledger must admit it too."""
        if self.round is not None:
            return self.round.version
        if schedule.has_rounds:
            return _NEVER
        if schedule.is_strict:
            return _ANY
        # With neither rounds nor deadlines only the newest version may start a new group.
        return published if published >= 0 else _NEVER

    def failure(self, schedule: Schedule, reward_failure: str) -> str | None:
        """Return why the run must fail; None if it can continue."""
        streaks = self.streaks
        if streaks.num_dropped >= schedule.batch_size:
            return f"{streaks.num_dropped} groups in a row lost every response to a failing reward; {reward_failure}"
        if streaks.num_useless >= schedule.max_useless_groups:
            return (
                f"{streaks.num_useless} groups in a row had equal scores and were filtered; the prompts are too easy"
                " or too hard"
            )
        if streaks.num_reliefs >= MAX_RELIEFS:
            return (
                f"the trainer waited {schedule.max_stuck_s} s for unfinished groups {MAX_RELIEFS} times without getting"
                " a batch: responses take longer than max_stuck_s; raise it"
            )
        return None

    def relief_at(self, schedule: Schedule) -> float | None:
        """Return when the groups that the trainer waits for will be restarted or dropped; None: there is no such
        time."""
        if self.stuck_since is None or schedule.max_stuck_s is None:
            return None
        return self.stuck_since + schedule.max_stuck_s

    def waits(self, schedule: Schedule, limits: Limits) -> Iterator[Wait]:
        if self.requested is not None:
            what = f"prompts of '{schedule.train_source}'"
            yield Wait(what=what, since=self.requested.since, limit_s=limits.prompts_s)

    # Notices

    def group_began(self, group: Group, version: Version) -> None:
        """Note that the first member of a group goes to an instance of this version."""
        self.ledger.reserve(group.id, version)

    def round_began(self, now: float) -> None:
        """Note that a response of the current round goes to an instance."""
        if self.round is not None and self.round.began_at is None:
            self.round.began_at = now

    def remove_surplus(self, response: ResponseId) -> None:
        """Note that a surplus response was scored before it could be aborted."""
        self.surplus.pop(response, None)
