"""Adaptive: a test case may run somewhat longer than the slowest correct response so far, which most doomed programs
exceed soon.

A problem that nobody has solved yet has the full limit. Some responses are probes and have it too: without them a
correct program that is slower than the limit could never raise it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from tailrace.core.commands import CaseLimits
from tailrace.core.ids import ResponseId
from tailrace.core.rewards.case_times import CaseTimes
from tailrace.core.schedule import CaseTime, Schedule

_RANGE = 1 << 32


@dataclass(frozen=True, slots=True)
class AdaptiveTimeouts:
    learns: ClassVar[bool] = True

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        return cls()

    def limits(self, response: ResponseId, times: CaseTimes | None, rules: CaseTime) -> CaseLimits:
        if times is None or is_probe(response, rules.probe_share):
            return CaseLimits(rules.most_s)
        return times.limits(rules)


def is_probe(response: ResponseId, share: float) -> bool:
    """Whether a response is a probe. It follows from its id alone, so that a run can be repeated."""
    return _mixed(response) < share * _RANGE


def _mixed(response: ResponseId) -> int:
    """A number below ``_RANGE`` in which every part of an id changes about half of the bits."""
    group = response.group
    mixed = 0
    for part in (*map(ord, group.source), group.epoch, group.prompt, response.member, response.attempt):
        mixed = (mixed ^ part) * 0x9E3779B1 % _RANGE
        mixed = (mixed ^ mixed >> 15) * 0x85EBCA77 % _RANGE
        mixed ^= mixed >> 13
    return mixed
