"""When an evaluation begins and ends, and which sets are given up."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.core import commands as do
from tailrace.core.aborting import abort
from tailrace.core.requests import OpenRequest
from tailrace.core.responses.group import GroupPhase
from tailrace.core.rooms import Rooms


def drop_evaluation(rooms: Rooms, now: float) -> Iterator[do.Command | None]:
    """Drop the sets in progress that the run no longer has, or no longer evaluates at this version: it was continued
    with other sets, another interval or another end."""
    evaluation, known = rooms.evaluation, {eval_set.name for eval_set in rooms.schedule.eval_sets}
    is_due = rooms.schedule.is_eval_due(rooms.training.version)
    gone = [name for name in evaluation.open if name not in known or not is_due]
    groups = [group for group in rooms.responses.all_groups() if group.id.source in gone] if gone else []
    for group in groups:
        yield from abort(rooms, group.members.values())
        rooms.responses.remove(group.id)
    for name in gone:
        del evaluation.open[name]
        evaluation.requested.pop(name, None)
    if gone:
        yield do.ReportDropped(dropped=tuple(sorted(group.id for group in groups)))
        yield None


def open_evaluation(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Request the prompts of every evaluation set if the current version must be evaluated."""
    evaluation, version = rooms.evaluation, rooms.training.version
    if evaluation.is_over(rooms.schedule, version):
        return
    for eval_set in rooms.schedule.eval_sets:
        if eval_set.name not in evaluation.open:
            evaluation.open[eval_set.name] = eval_set.num_prompts
            evaluation.requested[eval_set.name] = OpenRequest(since=now, version=version)
            yield do.RequestPrompts(source=eval_set.name, epoch=version, offset=0, count=eval_set.num_prompts)


def close_evaluation(rooms: Rooms, now: float) -> Iterator[do.Command | None]:
    """Report an evaluation whose groups are all complete."""
    evaluation, version = rooms.evaluation, rooms.training.version
    if not evaluation.open or any(evaluation.open.values()):
        return
    for name in evaluation.open:
        groups = sorted(group.id for group in rooms.responses.all_groups() if group.id.source == name)
        for group in groups:
            rooms.responses.remove(group).move(GroupPhase.EVALUATED, now=now)
        yield do.CloseEvaluation(version=version, source=name, groups=tuple(groups))
    evaluation.open = {}
    evaluation.done = version
    yield None
