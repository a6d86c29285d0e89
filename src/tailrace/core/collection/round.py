"""One round: the groups that are generated for one batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.core.ids import GroupId, Version


@dataclass(slots=True, kw_only=True)
class Round:
    """One round."""

    number: int
    """Number of the step whose batch it fills."""
    is_long: bool
    """Whether it takes its groups from the long queue."""
    version: Version
    """Oldest version that may generate tokens for it."""
    size: int
    """Groups it launches at its start."""
    num_kept: int
    """Groups that it keeps in progress: when fewer are left because of filtered or dropped groups, it starts others."""
    num_members: int
    """Responses with which each group begins."""
    batch_size: int
    """Groups of its batch: the round ends when this many are complete."""
    is_flush: bool = False
    """Whether it trains the last prompts of a pass over the data, so that its batch may be smaller."""
    num_begun: int = 0
    """Groups that started or continued in it. Those beyond ``size`` replaced others."""
    began_at: float | None = None
    """When its first response went to an instance."""
    has_tried_all: bool = False
    """Whether it has started every prompt that may start. Then it takes deferred groups, whatever their length and
    domain."""
    quota_leftovers: dict[GroupId, str] = field(default_factory=dict)
    """Complete groups, with their domains, for which the batch has no place under the quotas. They are not replaced."""
