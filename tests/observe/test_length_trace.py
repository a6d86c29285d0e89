"""Length traces: what is written is read, bare lists are read, anything else is refused in words."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from core.world import World
from tailrace.core.outcomes import Outcome
from tailrace.core.schedule import EvalSet, Schedule
from tailrace.observe.display.rollout_display import RolloutDisplay
from tailrace.observe.display.rollout_tally import RolloutTally
from tailrace.observe.prompts import length_trace
from tailrace.observe.prompts.fates import Fates
from tailrace.observe.prompts.length_trace import LengthTrace, PromptLengths

SCHEDULE = Schedule(
    train_source="",
    batch_size=2,
    group_size=3,
    max_steps=0,
    eval_sets=(EvalSet(name="train", num_prompts=5, group_size=3),),
    eval_interval=1,
)


@pytest.fixture(scope="module")
def world() -> World:
    world = World(SCHEDULE, random.Random(0), trouble=0.05)
    assert world.run().reason == "every prompt is done"
    return world


@pytest.fixture(scope="module")
def fates(world: World) -> Fates:
    fates = Fates()
    for entry in world.entries:
        fates.feed(entry)
    return fates


def test_a_trace_holds_every_response_in_the_order_of_its_group(fates: Fates, tmp_path: Path) -> None:
    prompts = length_trace.of_fates(fates, lambda group: 10 + group.prompt)
    assert [(p.source, p.epoch, p.index, p.prompt_length) for p in prompts] == [
        (fate.group.source, fate.group.epoch, fate.group.prompt, 10 + fate.group.prompt)
        for fate in fates.groups.values()
    ]
    for prompt, fate in zip(prompts, fates.groups.values(), strict=True):
        notes = [fate.responses[response] for response in sorted(fate.responses)]
        assert prompt.lengths == tuple(note.length for note in notes)
        assert prompt.finishes == tuple(note.finish.value for note in notes if note.finish)
        assert prompt.scores == tuple(note.score if note.outcome is Outcome.OK else None for note in notes)
        assert len(prompt.lengths) == len(prompt.finishes) == 3
    trace = LengthTrace(model="m", cap=64, group_size=3, sampling={"temperature": 1.0}, prompts=prompts)
    length_trace.write(tmp_path / "lengths.json", trace)
    assert length_trace.read(tmp_path / "lengths.json") == trace


def test_bare_lists_of_lengths_are_read(tmp_path: Path) -> None:
    path = tmp_path / "bare.json"
    path.write_text("[[36, 77], [3072, 5, 538]]")
    trace = length_trace.read(path)
    assert [prompt.lengths for prompt in trace.prompts] == [(36, 77), (3072, 5, 538)]
    assert (trace.model, trace.cap, trace.group_size) == (None, None, 3)
    assert trace.prompts[1] == PromptLengths(
        source="", epoch=0, index=1, prompt_length=None, lengths=(3072, 5, 538), finishes=(), scores=()
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[1, 2", "is not JSON"),
        ("[[1], []]", "expected a list of lists of lengths"),
        ('[["a"]]', "expected a list of lists of lengths"),
        ('{"schema": "tailrace/length-trace", "version": 9}', "version 9, expected tailrace/length-trace version 1"),
        ('{"lengths": []}', "is not a length trace: 'schema'"),
    ],
)
def test_what_is_no_trace_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "lengths.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        length_trace.read(tmp_path / "lengths.json")


def test_the_tally_agrees_with_the_fates_and_lines_come_once_a_batch(world: World, fates: Fates) -> None:
    tally, said = RolloutTally(), []
    display = RolloutDisplay(SCHEDULE, said.append)
    for entry in world.entries:
        tally.feed(entry)
        display.entry(entry)
    notes = [note for fate in fates.groups.values() for note in fate.responses.values()]
    row = tally.row()
    assert row["perf/tokens_total"] == sum(note.length for note in notes)
    assert row["reward/mean"] == pytest.approx(sum(note.score for note in notes) / 15)
    assert row["response_length/max"] == max(note.length for note in notes)
    assert tally.num_prompts_done == 5
    assert 0 < tally.busy_s < world.now
    assert said[-1].startswith("prompts 5/5  reward ")
    assert 1 < len(said) <= 3


def test_a_display_that_takes_up_a_run_counts_what_was_done_before(world: World) -> None:
    said: list[str] = []
    middle = len(world.entries) // 2
    display = RolloutDisplay(SCHEDULE, said.append, past=world.entries[:middle])
    assert said == []
    for entry in world.entries[middle:]:
        display.entry(entry)
    assert said[-1].startswith("prompts 5/5  reward ")
