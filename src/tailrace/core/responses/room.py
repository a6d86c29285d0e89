"""The responses room: every live group and its members, and which of them are queued for an instance.

A group is removed when it is trained, evaluated, filtered or dropped, so the room stays small however long a run lasts.
``pending`` is an index over the members' phases: it makes a search through all groups unnecessary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tailrace.core.errors import UnknownSubject
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.responses.group import Group, GroupPhase
from tailrace.core.responses.response import Response, ResponsePhase


@dataclass(slots=True, kw_only=True)
class Responses:
    """State of the responses room."""

    groups: dict[GroupId, Group] = field(default_factory=dict)
    """Every live group."""
    pending: dict[GroupId, int] = field(default_factory=dict)
    """Number of members of each open group that are queued for an instance."""

    # Questions

    def group(self, group: GroupId) -> Group:
        return self.groups[group]

    def has_group(self, group: GroupId) -> bool:
        return group in self.groups

    def find(self, response: ResponseId) -> Response | None:
        group = self.groups.get(response.group)
        return None if group is None else group.members.get(response)

    def response(self, response: ResponseId) -> Response:
        try:
            return self.groups[response.group].members[response]
        except KeyError:
            raise UnknownSubject(f"no live response {response}") from None

    def all_groups(self) -> Iterable[Group]:
        return self.groups.values()

    def training_groups(self) -> Iterator[Group]:
        return (group for group in self.groups.values() if group.is_training)

    def all_responses(self) -> Iterator[Response]:
        """Return every response whose tokens may still be needed."""
        for group in self.groups.values():
            yield from group.members.values()

    def is_training(self, response: ResponseId) -> bool:
        return self.groups[response.group].is_training

    @property
    def has_waiting(self) -> bool:
        return bool(self.pending)

    @property
    def num_waiting(self) -> int:
        return sum(self.pending.values())

    def waiting_groups(self) -> list[Group]:
        """Return the groups that have a queued member, in the order they were queued."""
        groups = self.groups
        return [groups[number] for number in self.pending]

    # Notices

    def add(self, group: Group) -> None:
        """Add a group that starts, or starts again. Its pending members are queued."""
        self.groups[group.id] = group
        for response in group.members.values():
            if response.phase is ResponsePhase.PENDING:
                self.wait(response)

    def remove(self, group: GroupId) -> Group:
        """Remove and return a group that was trained, evaluated, filtered or dropped."""
        self.pending.pop(group, None)
        return self.groups.pop(group)

    def wait(self, response: Response) -> None:
        """Queue a response for an instance, if its group is open."""
        group = self.groups[response.id.group]
        if group.phase is GroupPhase.OPEN:
            self.pending[group.id] = self.pending.get(group.id, 0) + 1

    def stop_waiting(self, group: GroupId, count: int) -> None:
        """Remove ``count`` members of a group from the queue: they go to instances, or are aborted."""
        if group in self.pending:  # members of a deferred group are not queued
            self.pending[group] -= count
            if not self.pending[group]:
                del self.pending[group]

    def stop_waiting_for(self, group: GroupId) -> None:
        """Remove all members of this group from the queue."""
        self.pending.pop(group, None)

    def check(self) -> None:
        for group in self.groups.values():
            group.check()
        waiting = [r for r in self.all_responses() if r.phase is ResponsePhase.PENDING]
        open_ids = [r.id.group for r in waiting if self.groups[r.id.group].phase is GroupPhase.OPEN]
        assert self.pending == {group: open_ids.count(group) for group in set(open_ids)}
