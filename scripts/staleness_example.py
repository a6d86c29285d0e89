"""The worked example of docs/staleness.md on the real ledger: two groups per batch, bound 1, two instances.

Groups have letters, instances are X and Y. Each step is a few operations; what the ledger is afterwards is a ``Scene``.
The pictures and the table of the page are both made of scenes, and a test compares the page with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tailrace.core.ids import GroupId
from tailrace.core.ledger.admission import AdmissionRule, LedgerRules
from tailrace.core.ledger.ledger import Consumption, Ledger

BATCH_SIZE, MAX_STALENESS = 2, 1
STEPS = (
    ("a, b, c, d begin", "reserve a X, reserve b Y, reserve c X, reserve d Y"),
    ("b is finished", "occupy b"),
    ("d is finished", "occupy d"),
    ("the batch trains", "consume"),
    ("Y pulls; e, f begin", "pull Y, reserve e Y, reserve f Y"),
    ("e is finished", "occupy e"),
    ("c is finished", "occupy c"),
    ("a is filtered", "delete a"),
    ("the batch trains", "consume"),
)
"""What a step is called, and its operations: a verb, the group if any, the instance if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One live group."""

    group: str
    version: int
    is_finished: bool
    moved_from: int | None
    """The buffer it sat in before the step, if another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    number: int
    title: str
    current: int
    buffers: tuple[tuple[Place, ...], ...]
    """Of the batches from ``current`` on; finished groups first."""
    state: str
    admits: dict[int, bool]
    """Whether a group of this version may begin, for every version that an instance holds or can pull."""
    instances: dict[str, int]
    trained: tuple[tuple[str, int], ...]
    """Groups of all batches so far, with their staleness."""

    @property
    def row(self) -> tuple[str, ...]:
        """The scene as the page's table has it: step, batch, its buffer, the next one, state, who may begin."""
        cells = [" ".join(_word(place) for place in buffer) or "-" for buffer in self.buffers]
        may_begin = ", ".join(f"version {version}" for version, is_admitted in self.admits.items() if is_admitted)
        return str(self.number), str(self.current), *cells, self.state, may_begin or "nothing"


def _word(place: Place) -> str:
    return f"{place.group}{place.version}{'*' if place.is_finished else ''}"


def group_id(letter: str) -> GroupId:
    return GroupId("train", 0, ord(letter) - ord("a"))


def letter_of(group: GroupId) -> str:
    return chr(group.prompt + ord("a"))


class Example:
    def __init__(self) -> None:
        rules = LedgerRules(
            batch_size=BATCH_SIZE, max_staleness=MAX_STALENESS, admission=AdmissionRule.DEADLINE, capacity=BATCH_SIZE
        )
        self.ledger = Ledger(rules)
        self.instances = {"X": 0, "Y": 0}
        self.consumptions: list[Consumption] = []

    def perform(self, operation: str) -> None:
        match operation.split():
            case "reserve", group, instance:
                self.ledger.reserve(group_id(group), self.instances[instance])
            case "occupy", group:
                self.ledger.occupy(group_id(group))
            case "delete", group:
                self.ledger.delete(group_id(group))
            case "consume", *_:
                self.consumptions.append(self.ledger.consume())
            case "pull", instance:
                self.instances[instance] = self.ledger.current
        self.ledger.check()

    def scenes(self) -> Iterator[Scene]:
        for number, (title, operations) in enumerate(STEPS, start=1):
            before = {group: entry.slot for group, entry in self.ledger.entries.items()}
            for operation in operations.split(", "):
                self.perform(operation)
            yield self._scene(number, title, before)

    def _scene(self, number: int, title: str, before: dict[GroupId, int]) -> Scene:
        ledger = self.ledger
        versions = sorted({*self.instances.values(), ledger.current})
        done = [pair for each in self.consumptions for pair in zip(each.batch, each.staleness, strict=True)]
        return Scene(
            number=number,
            title=title,
            current=ledger.current,
            buffers=tuple(self._buffer(ledger.current + index, before) for index in range(MAX_STALENESS + 1)),
            state=ledger.state.value,
            admits={version: ledger.can_reserve(version) for version in versions},
            instances=dict(self.instances),
            trained=tuple((letter_of(group), staleness) for group, staleness in done),
        )

    def _buffer(self, slot: int, before: dict[GroupId, int]) -> tuple[Place, ...]:
        here = [(group, entry) for group, entry in self.ledger.entries.items() if entry.slot == slot]
        here.sort(key=lambda holding: (not holding[1].is_occupied, holding[0]))
        return tuple(
            Place(
                group=letter_of(group),
                version=entry.version,
                is_finished=entry.is_occupied,
                moved_from=before[group] if before.get(group, slot) != slot else None,
            )
            for group, entry in here
        )


def scenes() -> list[Scene]:
    return list(Example().scenes())


if __name__ == "__main__":
    for scene in scenes():
        print(f"| {' | '.join(scene.row)} |  {scene.title}")
