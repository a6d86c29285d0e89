"""Events of the evaluation room."""

from __future__ import annotations

from tailrace.core import events as ev
from tailrace.core.ids import GroupId
from tailrace.core.responses.group import Group
from tailrace.core.rooms import Rooms


def prompts_offered(rooms: Rooms, event: ev.PromptsOffered, now: float) -> None:
    version = rooms.training.version
    if event.source not in rooms.evaluation.requested or any(epoch != version for epoch, _ in event.prompts):
        rooms.run.refuse(f"prompts of '{event.source}', which were not asked for")
        return
    del rooms.evaluation.requested[event.source]
    size = next(each.group_size for each in rooms.schedule.eval_sets if each.name == event.source)
    for epoch, prompt in event.prompts:
        number = GroupId(event.source, epoch, prompt)
        group = Group(id=number, num_needed=size, version=version, is_training=False)
        group.begin(size)
        rooms.responses.add(group)


def run_resumed(rooms: Rooms, event: ev.RunResumed, now: float) -> None:
    """Reset requests for prompts, which will not be answered: the sets are opened again."""
    for source in rooms.evaluation.requested:
        del rooms.evaluation.open[source]
    rooms.evaluation.requested.clear()
