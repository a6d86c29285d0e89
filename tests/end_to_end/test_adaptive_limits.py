"""A run that is killed keeps what it has learned about the times of test cases, and goes on with the same limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from end_to_end import launch
from end_to_end.test_lost_instances import entries_of, followed
from rewards.sandbox.players import needs_bubblewrap
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.journal import Entry, replay_all
from tailrace.core.rewards.case_times import problem_of
from tailrace.policies.strategies import policies_of
from tailrace.policies.timeouts.adaptive import is_probe

pytestmark = [pytest.mark.slow, pytest.mark.long, needs_bubblewrap]

MOST_S, LEAST_S, FACTOR, PROBES = 60.0, 0.04, 1.5, 0.1
PROGRAM = """'''
import time, zlib
case, drawn = int(input()), zlib.crc32(text.encode()) % 100
time.sleep((0.03 + drawn / 4000) * (1 + case))
print(case if drawn < 70 else -1)
"""
"""Right in 70 of 100 responses, and slower in each case than in the one before."""


def rows() -> list[dict[str, Any]]:
    return [
        {
            "prompt": f"{number}+1=",
            "program_prefix": f"text = '''{number} ",
            "program_suffix": PROGRAM,
            "tests": [{"input": str(case), "output": str(case)} for case in range(3)],
        }
        for number in range(4)
    ]


def test_anchors_survive_kill_9_and_resume_exactly(tmp_path: Path) -> None:
    given = {
        "data__train": launch.write_rows(tmp_path / "problems.jsonl", rows()),
        "reward__functions": "code_tests",
        "reward__code_tests__timeouts": "adaptive",
        "reward__code_tests__case_timeout_s": MOST_S,
        "reward__code_tests__min_case_timeout_s": LEAST_S,
        "reward__code_tests__timeout_factor": FACTOR,
        "reward__code_tests__timeout_probe_share": PROBES,
        "rollout__max_response_length": 16,
        "schedule__max_steps": 5,
        "save_interval": 2,
        "eval": "[]",
        "eval_interval": "null",
    }
    output = tmp_path / "run"
    launch.kill_when(launch.start(output, **given), lambda: has_learned(entries_of(output), num_steps=3))
    killed_at = len(entries_of(output))
    known = followed(entries_of(output)).rooms.rewards.case_times
    launch.train_well(output, **given)
    entries = entries_of(output)
    assert any(isinstance(entry.event, ev.RunResumed) for entry in entries[killed_at:])
    assert known
    check_limits(entries)
    assert replay_all(entries, lambda schedule: Coordinator(schedule, policies=policies_of(schedule))) == len(entries)


def has_learned(entries: list[Entry], *, num_steps: int) -> bool:
    """Whether anchors are known, a checkpoint is older than some of them, and scores are outstanding."""
    trained = sum(isinstance(entry.event, ev.StepTrained) for entry in entries)
    return trained >= num_steps and bool(entries) and any(isinstance(c, do.Score) for c in entries[-1].commands)


def check_limits(entries: list[Entry]) -> None:
    """Each limit follows from what correct responses took before it, counted here from the journal alone."""
    anchors: dict[str, dict[int, float]] = {}
    was_cut: set[str] = set()
    """Problems in which a response was cut: their limits may have been raised."""
    num_short = 0
    for entry in entries:
        if isinstance(entry.event, ev.ResponsesScored):
            for scored in entry.event.scores:
                problem = problem_of(scored.response.group)
                if scored.is_correct:
                    known = anchors.setdefault(problem, {})
                    for case, seconds in scored.slow_cases:
                        known[case] = max(seconds, known.get(case, 0.0))
                if scored.cut_cases:
                    was_cut.add(problem)
        for command in entry.commands:
            if not isinstance(command, do.Score):
                continue
            for response, limits in zip(command.responses, command.limits, strict=True):
                problem = problem_of(response.group)
                if problem not in anchors or is_probe(response, PROBES):
                    assert limits == do.CaseLimits(MOST_S)
                    continue
                num_short += 1
                assert limits.others_s == LEAST_S
                wanted = {
                    case: min(max(LEAST_S, FACTOR * seconds), MOST_S)
                    for case, seconds in anchors[problem].items()
                    if FACTOR * seconds > LEAST_S
                }
                if problem not in was_cut:
                    assert dict(limits.cases) == pytest.approx(wanted), json.dumps(wanted)
                else:
                    assert all(dict(limits.cases)[case] >= least - 1e-9 for case, least in wanted.items())
    assert num_short > 10, "limits below the longest were sent"
