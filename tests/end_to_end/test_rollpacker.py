"""Preset `rollpacker` for real on a CPU, with math, programs and a judge in one run. Streamed steps, lent instances and
adaptive limits work, and a kill loses nothing. There is one parallel size, and no layer of the judge moves."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from end_to_end import launch
from end_to_end.wounds import entries_of
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.journal import Entry, replay_all
from tailrace.core.outcomes import Outcome, Part
from tailrace.observe.prompts.conservation import conservation
from tailrace.policies.strategies import policies_of

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

SOURCES = ("math", "code", "judge")
STEPS, BATCH, GROUP = 6, 12, 4
PERIOD = 5
"""Four short rounds and a long one."""
SHORT, MEDIUM, LONG = [6, 9, 12, 14, 16], [90, 100, 105, 110, 120], [560, 570, 580, 590, 600]
REWARD = """
def last_digit(response: str, answer: str) -> float:
    return float(answer[-1] in response)
"""
PROGRAM = {"program_prefix": "text = '''", "program_suffix": "'''\nprint(len(text) % 2)"}
"""Right for every response of odd length."""
MODE = "weak" if shutil.which("bwrap") is None else "strong"
CASE_S = 9.0


def length_of(place: int) -> list[int]:
    """The lengths of the responses to prompt ``place`` of a source. A round starts five prompts of each source and
    trains four; the fifth is long and is deferred. In the long round those of the first short round end first: then a
    quarter of the batch is complete, and the rest takes a while."""
    if place % PERIOD != PERIOD - 1:
        return SHORT
    return MEDIUM if place // PERIOD % (PERIOD - 1) == 0 else LONG


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "reward.py").write_text(REWARD)
    pairs = [divmod(number, 10) for number in range(50)]
    rows = [{"prompt": f"{one}+{other}=", "answer": str(one + other)} for one, other in pairs]
    of_source: dict[str, list[dict[str, Any]]] = {
        "math": rows,
        "code": [row | PROGRAM | {"tests": [{"input": "", "output": "1"}]} for row in rows],
        "judge": rows,
    }
    rewards = {"math": "last_digit", "code": "code_tests", "judge": "judge"}
    sources = [
        {"name": name, "path": launch.write_rows(tmp_path / f"{name}.jsonl", of_source[name]), "reward": rewards[name]}
        for name in SOURCES
    ]
    lengths = [length_of(place) for _ in SOURCES for place in range(len(rows))]
    (tmp_path / "lengths.json").write_text(json.dumps(lengths))
    return {
        "data__sources": json.dumps(sources),
        "data__shuffle": False,
        "reward__functions": json.dumps([f"{tmp_path / 'reward.py'}:last_digit"]),
        "reward__code_tests__mode": MODE,
        "reward__code_tests__case_timeout_s": CASE_S,
        "reward__code_tests__workers": 2,
        "reward__judge__model": "tiny-arith",
        "reward__judge__prompt": '"{prompt}{response}+0="',
        "reward__judge__chat": False,
        "reward__judge__answers": '{"1": 1.0, "2": 0.0}',
        "rollout__forced_lengths": tmp_path / "lengths.json",
        "rollout__max_response_length": LONG[-1],
        "rollout__max_running": 64,
        "rollout__n_samples_per_prompt": GROUP,
        "rollout__num_instances": 2,
        "schedule__preset": "rollpacker",
        "schedule__rollout_batch_size": BATCH,
        "schedule__max_steps": STEPS,
        "trainer__num_ranks": 2,
        "trainer__num_replicas": 2,
        "trainer__learning_rate": 1e-4,
        "save_interval": 2,
        "eval": "[]",
        "eval_interval": "null",
    }


def commands_of(entries: list[Entry], kind: type[Any]) -> list[Any]:
    return [command for entry in entries for command in entry.commands if isinstance(command, kind)]


def pieces(entries: list[Entry]) -> dict[int, list[do.Accumulate]]:
    """The pieces of each step, as they were sent the last time."""
    found: dict[int, list[do.Accumulate]] = {}
    for piece in commands_of(entries, do.Accumulate):
        found[piece.version] = [*(found[piece.version] if piece.piece else []), piece]
    return found


def has_trained_on_lent_devices(entries: list[Entry]) -> bool:
    """Whether a piece was given to one of the two replicas alone."""
    return any(piece.replicas in ((0,), (1,)) for piece in commands_of(entries, do.Accumulate))


def assert_everything_worked(output: Path) -> None:
    entries = entries_of(output)
    assert replay_all(entries, lambda schedule: Coordinator(schedule, policies=policies_of(schedule))) == len(entries)
    found = conservation(entries)
    assert (found["adds_up"], found["trained_twice"]) == (1, 0)
    steps = pieces(entries)
    assert sorted(steps) == list(range(STEPS))
    for sent in steps.values():
        groups = Counter(group for piece in sent for group in {response.group for response in piece.responses})
        assert len(groups) == BATCH
        assert set(groups.values()) == {1}
    assert any(len(sent) > 1 for sent in steps.values()), "no step was streamed"
    assert has_trained_on_lent_devices(entries)
    rows = [row for row in launch.untimed_metrics(output) if "reward/mean" in row]
    assert {row["step"]: row["groups/is_long_round"] for row in rows} == {step: step == PERIOD for step in range(1, 7)}
    assert all(f"reward/source/{name}/mean" in row for row in rows for name in SOURCES)


def assert_every_part_scored(entries: list[Entry]) -> None:
    scores = [entry.event for entry in entries if isinstance(entry.event, ev.ResponsesScored)]
    for part in Part:
        mine = [scored for event in scores if event.part is part for scored in event.scores]
        done = [scored.score for scored in mine if scored.outcome is Outcome.OK]
        assert len(done) >= STEPS * BATCH * GROUP // len(SOURCES), part
        assert len(set(done)) > 1, f"all scores of {part} are the same"
        assert {scored.outcome for scored in mine} <= {Outcome.OK, Outcome.ABSTAINED, Outcome.ABORTED}


def test_math_programs_and_a_judge_in_one_run_with_streamed_steps_lent_instances_and_adaptive_limits(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    run = launch.train_well(tmp_path / "run", **given)
    assert "rollpacker: without changes of the parallel size, because there is one parallel size" in run.said
    assert (
        "rollpacker: without layers of a judge in host memory, because on a CPU all layers are in its memory"
        in run.said
    )
    assert run.said.count("rollpacker: without ") == 2
    entries = entries_of(run.output)
    assert_everything_worked(run.output)
    assert_every_part_scored(entries)
    assert {entry.event.schedule.case_time.strategy for entry in entries if isinstance(entry.event, ev.RunStarted)} == {
        "adaptive"
    }


def test_a_run_that_is_killed_while_an_instance_is_lent_goes_on_and_loses_nothing(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    output = tmp_path / "run"
    process = launch.start(output, **given)
    assert launch.kill_when(process, lambda: has_trained_on_lent_devices(entries_of(output))) == []
    before = pieces(entries_of(output))
    version = max(before)
    launch.train_well(output, **given)
    entries = entries_of(output)
    assert any(isinstance(entry.event, ev.RunResumed) for entry in entries)
    # The same pieces in the same order. All replicas may train them now: nothing is lent after a new start.
    sent = [piece.responses for piece in before[version]]
    assert [piece.responses for piece in pieces(entries)[version][: len(sent)]] == sent
    assert_everything_worked(output)
    assert_every_part_scored(entries)
