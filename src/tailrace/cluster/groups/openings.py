"""Which node groups may have got room for another job, and when.

A job that found no place on any group need not try the same groups again before something has changed there: a job
has left, a lost node is back, a claim was dropped, or the group's jobs have waited for less of their time. Otherwise
every event would try every waiting job on every group. Between two changes a fit may also appear because time passes
(a job would begin at another slot of the ring). It is found at the next change of that group, also for a new job with
the same needs as one that waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.cluster.ids import NodeGroupId

NEVER = -1
"""The number of a search that has not happened."""


class Openings:
    def __init__(self, groups: Iterable[NodeGroupId]) -> None:
        self._position = {group: index for index, group in enumerate(groups)}
        self._numbers = dict.fromkeys(self._position, 0)
        """Number of the newest opening of each group. The one that opened last comes last."""
        self.newest = 0

    def note(self, group: NodeGroupId) -> None:
        self.newest += 1
        del self._numbers[group]
        self._numbers[group] = self.newest

    def since(self, number: int) -> list[NodeGroupId]:
        """Groups that opened after the opening of this number, in the order of the cluster; after ``NEVER``: all."""
        found = []
        for group, opened in reversed(self._numbers.items()):
            if opened <= number:
                break
            found.append(group)
        return sorted(found, key=self._position.__getitem__)
