"""Dynamic sampling with tail batching: what is deferred is long, not late.

A *late starter* is a group whose prompt was asked for after its round had begun, to replace a filtered one. When the
batch is full it has had less time than the others, so that it is unfinished says nothing about its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from sim.worlds import small_scenario
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.journal import Entry
from tailrace.sim.result import SimResult, simulate

BATCH_SIZE, NUM_STEPS = 16, 20


@dataclass(slots=True)
class RoundStory:
    opened: do.OpenRound
    closed: do.CloseRound | None = None
    late: set[GroupId] = field(default_factory=set)
    """Offered after the first response of the round was given out."""
    begun: set[GroupId] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Run:
    result: SimResult
    entries: list[Entry]

    def rounds(self) -> list[RoundStory]:
        found: list[RoundStory] = []
        for entry in self.entries:
            if isinstance(entry.event, ev.PromptsOffered) and found and found[-1].begun and not found[-1].closed:
                found[-1].late |= {GroupId(entry.event.source, *prompt) for prompt in entry.event.prompts}
            for command in entry.commands:
                match command:
                    case do.OpenRound():
                        found.append(RoundStory(command))
                    case do.CloseRound():
                        found[-1].closed = command
                    case do.Submit(dispatches=dispatches) if found:
                        found[-1].begun |= {dispatch.response.group for dispatch in dispatches}
        return [story for story in found if story.closed is not None]

    def filtered(self) -> Iterator[GroupId]:
        for entry in self.entries:
            for command in entry.commands:
                if isinstance(command, do.ReportDropped):
                    yield from command.filtered

    @property
    def avoidable_waste(self) -> float:
        """Tokens per trained token that were generated for nothing, other than those of filtered groups."""
        figures, lengths = self.result.figures, dict[ResponseId, int]()
        for entry in self.entries:
            if isinstance(entry.event, ev.RolloutReported):
                lengths |= {part.response: part.length for part in entry.event.parts}
            if isinstance(entry.event, ev.ResponsesAborted):  # 0 for one that had ended: then its report told
                lengths |= {part.response: part.length for part in entry.event.aborted if part.length}
        left_out = set(self.filtered())
        tokens = sum(length for response, length in lengths.items() if response.group in left_out)
        return (figures.tokens_wasted - tokens) / figures.tokens_trained


def run(*, filters: bool, never_solved: float = 0.0) -> Run:
    """Groups of four that are solved at all rates: two of five are filtered, and more if some are never solved."""
    scenario = small_scenario(
        schedule__rollout_batch_size=BATCH_SIZE,
        schedule__num_steps=NUM_STEPS,
        schedule__dynamic_sampling=filters,
        engine__num_instances=4,
        engine__kv_capacity=40_000,
        reward__never_solved=never_solved,
    )
    entries: list[Entry] = []
    return Run(simulate(scenario, "tail-batching", record=entries.append), entries)


@pytest.fixture(scope="module")
def filtering() -> Run:
    return run(filters=True)


@pytest.fixture(scope="module")
def plain() -> Run:
    return run(filters=False)


def test_the_setting_filters_two_of_five_groups(filtering: Run) -> None:
    assert filtering.result.is_complete
    num_filtered = len(list(filtering.filtered()))
    assert 0.3 < num_filtered / (num_filtered + BATCH_SIZE * NUM_STEPS) < 0.5


def test_a_late_starter_is_not_deferred(filtering: Run) -> None:
    rounds = filtering.rounds()
    deferred = [group for story in rounds if story.closed for group in story.closed.deferred]
    late = [group for story in rounds if story.closed for group in story.closed.deferred if group in story.late]
    assert not late, f"{len(late)} of {len(deferred)} deferred prompts began late"


def test_a_late_starter_goes_on_or_comes_again_in_the_next_short_round(filtering: Run) -> None:
    rounds, done = filtering.rounds(), {*filtering.filtered()}
    for number, story in enumerate(rounds):
        assert story.closed is not None
        done |= {*story.closed.accepted}
        following = next((later for later in rounds[number + 1 :] if not later.opened.is_long), None)
        if following is not None and following.closed is not None:
            left = story.late & story.begun - done
            there = following.begun | {*following.opened.resumed, *following.closed.accepted}
            assert left <= there, "a late starter waits longer than for the next short round"


def test_a_short_round_launches_for_the_groups_it_expects_to_be_filtered(filtering: Run, plain: Run) -> None:
    """The share is learned from the run, so the first rounds launch what the schedule says."""
    short = [story.opened.num_prompts for story in filtering.rounds() if not story.opened.is_long]
    [usual] = {story.opened.num_prompts for story in plain.rounds() if not story.opened.is_long}
    assert short[0] == usual
    assert sum(short[-5:]) / 5 > 1.3 * usual
    num_late = [len(story.late) for story in filtering.rounds() if not story.opened.is_long]
    assert sum(num_late[-5:]) / 5 < BATCH_SIZE / 4, "most of the filtered groups are still replaced one by one"


def test_no_more_is_wasted_than_without_filtering_but_for_what_is_filtered(filtering: Run, plain: Run) -> None:
    assert filtering.avoidable_waste < 1.1 * plain.avoidable_waste
