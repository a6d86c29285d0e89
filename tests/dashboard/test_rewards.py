"""What report and doctor say about rewards: parts, limits of test cases, and what mode weak does not stop."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.world import World
from dashboard.reward_runs import SCHEDULE, ThreeParts, three_parts
from dashboard.test_doctor import subjects
from dashboard.test_report import Page, finished
from observe.runs import advance_until, write_journal
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import ResponseId
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.rewards.case_times import CaseTimes
from tailrace.core.schedule import CaseTime, Leftovers, Limits
from tailrace.dashboard import reward_charts, reward_tables
from tailrace.dashboard.diagnosis import Finding
from tailrace.dashboard.doctor import examine
from tailrace.dashboard.report import write_report
from tailrace.dashboard.reward_checks import cuts_most
from tailrace.dashboard.reward_tables import Table
from tailrace.observe.account import Account
from tailrace.observe.journal.recollection import recollect
from tailrace.observe.journal.run_files import RunFiles
from tailrace.rewards.sandbox.weak import NOT_STOPPED


@pytest.fixture(scope="module")
def world() -> ThreeParts:
    return three_parts()


@pytest.fixture(scope="module")
def run(world: ThreeParts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_journal(tmp_path_factory.mktemp("three") / "run", world.entries)


@pytest.fixture(scope="module")
def tables(world: ThreeParts, run: Path) -> dict[str, Table]:
    found = reward_tables.tables(Account.of(world.entries), recollect(RunFiles.find(run)))
    return {table.title: table for table in found}


def configure(run: Path, **reward: Any) -> None:
    (run / "config.json").write_text(json.dumps({"reward": {"timeout_s": 10.0, **reward}}))


def seconds(cell: str) -> float:
    return float(cell.removesuffix(" s").replace(",", ""))


def test_every_source_has_its_seconds(world: ThreeParts, tables: dict[str, Table]) -> None:
    rows = {name: cells for name, *cells in tables["Seconds by source of prompts"].rows}
    sources = Account.of(world.entries).sources
    assert list(rows) == ["train", "heldout"]
    assert seconds(rows["heldout"][0]) == pytest.approx(sources.seconds["heldout"].rollout_s, abs=0.01)
    assert rows["heldout"][-1] == "-"
    assert [row[0] for row in tables["Scores by part of the training data"].rows] == ["code", "math"]


def test_every_part_has_its_load_its_failures_and_a_judge_its_speed(
    world: ThreeParts, tables: dict[str, Table]
) -> None:
    table = tables["Parts of the scores"]
    rows = {row[0]: dict(zip(table.head, row, strict=True)) for row in table.rows}
    assert list(rows) == ["reward functions", "test cases", "judge"]
    steps = Account.of(world.entries).steps
    failed = sum(row["scoring/judge/num_failed"] for row in steps)
    assert failed > 0
    assert (rows["judge"]["failed"], rows["test cases"]["failed"]) == (str(failed), "0")
    assert float(rows["judge"]["tokens/s"]) > 0
    assert rows["test cases"]["tokens/s"] == "-"
    assert seconds(rows["judge"]["exposed"]) == pytest.approx(
        sum(row["scoring/judge/exposed_s"] for row in steps), abs=0.01
    )


def test_the_problems_with_the_longest_limits_are_shown_with_their_anchors(
    world: ThreeParts, tables: dict[str, Table]
) -> None:
    table, known = tables["Limits and anchors of problems"], world.coordinator.rooms.rewards.case_times
    limits = [seconds(row[2]) for row in table.rows]
    rules = SCHEDULE.case_time
    longest = [max(times.limit_of(case, rules) for case in range(3)) for times in known.values()]
    assert limits == pytest.approx(sorted(longest, reverse=True)[: len(limits)], abs=0.01)
    for problem, case, limit, anchor, *_ in table.rows:
        assert seconds(limit) == pytest.approx(known[problem].limit_of(int(case), rules), abs=0.01)
        assert seconds(anchor) == pytest.approx(known[problem].anchors[int(case)], abs=0.01)


def test_solved_problems_whose_cases_are_all_quick_are_counted_and_not_listed(world: ThreeParts, run: Path) -> None:
    memory, account = recollect(RunFiles.find(run)), Account.of(world.entries)
    known = memory.coordinator.rooms.rewards.case_times
    known.clear()
    limits = reward_tables.tables(account, memory)[-1]
    assert (limits.rows, limits.note) == ((), reward_tables._NONE_SOLVED)
    known |= {"train:1": CaseTimes(num_tried=3), "train:2": CaseTimes(num_tried=3)}
    limits = reward_tables.tables(account, memory)[-1]
    assert (limits.rows, limits.note) == ((), "All cases of all 2 solved problems have 0.5 s.")
    known["train:3"] = CaseTimes(cuts={1: 2}, num_tried=3)
    limits = reward_tables.tables(account, memory)[-1]
    assert limits.rows == (("train:3", "all", "0.50 s", "up to 0.33 s", "-", "0", "2 of 3"),)
    assert limits.note.endswith("All cases of the other 2 solved problems have 0.5 s.")


def test_verdicts_are_found_whether_or_not_there_are_other_reward_functions() -> None:
    rows = [{"reward/verdict/passed/mean": 1.0}, {"reward/code_tests/verdict/time/mean": 1.0, "reward/mean": 1.0}]
    assert list(reward_tables.verdict_names(rows).values()) == ["passed", "time"]


def test_the_load_of_every_part_and_the_verdicts_that_occurred_are_drawn(world: ThreeParts) -> None:
    steps = Account.of(world.entries).steps
    charts = reward_charts.drawings(steps)
    assert [mark.words for mark in charts["loads"].key] == ["reward functions", "test cases", "judge"]
    assert [mark.words for mark in charts["verdicts"].key] == ["passed", "time"]
    drawn = charts["loads"].figure.renderers[0].data_source.data
    assert drawn["scoring/judge/load"].tolist() == [row["scoring/judge/load"] for row in steps]
    assert list(reward_charts.drawings(steps[:1])) == ["loads", "verdicts"]


def test_a_run_of_one_part_without_limits_has_fewer_tables() -> None:
    titles = [table.title for table in reward_tables.tables(Account.of(finished().entries), None)]
    assert titles == ["Seconds by source of prompts", "Parts of the scores"]


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_the_page_says_what_mode_weak_does_not_stop(run: Path, mode: str) -> None:
    configure(run, code_tests={"mode": mode})
    words = Page(write_report(run).read_text(encoding="utf-8")).words
    assert "Limits and anchors of problems" in words
    assert "Verdicts of programs" in words
    assert [sentence in words for sentence in NOT_STOPPED] == [mode == "weak"] * len(NOT_STOPPED)


def test_a_run_without_programs_is_not_warned_of_mode_weak(tmp_path: Path) -> None:
    run = write_journal(tmp_path / "run", finished().entries)
    configure(run, code_tests={"mode": "weak"})
    assert "mode weak" not in Page(write_report(run).read_text(encoding="utf-8")).words


def slow_part(tmp_path: Path, slow: Part, *, queued_s: float = 0.0, is_streamed: bool = True) -> Path:
    """A run in which every score of one part comes long after all others."""
    schedule = replace(SCHEDULE, eval_sets=(), eval_interval=None, max_steps=4, is_reward_streamed=is_streamed)
    schedule = replace(schedule, case_time=CaseTime(), leftovers=Leftovers.WAIT, launch_prompts=0, launch_responses=0)
    schedule = replace(schedule, limits=Limits(reward_s=10_000.0))
    world = SlowPart(schedule, slow, queued_s)
    assert world.run().is_complete
    return write_journal(tmp_path / "run", world.entries)


class SlowPart(World):
    def __init__(self, schedule: Any, slow: Part, queued_s: float) -> None:

        super().__init__(schedule, random.Random(4), num_prompts=29)
        self.slow, self.queued_s = slow, queued_s

    def reward(self) -> None:
        """The slow part comes last."""
        slow = {key: None for key in self.rewards if key[0] is self.slow}
        if len(slow) < len(self.rewards):
            self.rewards = {key: None for key in self.rewards if key not in slow}
            super().reward()
            self.rewards |= slow
        else:
            super().reward()

    def say(self, sender: object, event: ev.Event) -> None:
        if isinstance(event, ev.ResponsesScored) and event.part is self.slow:
            self.now += 20.0 if not any(self.running.values()) else 0.0
            event = replace(event, scores=tuple(replace(each, queued_s=self.queued_s) for each in event.scores))
        super().say(sender, event)  # type: ignore[arg-type]


def the_wait(run: Path) -> Finding:
    (finding,) = [finding for finding in examine(run).findings if "alone" in finding.what]
    assert finding.subject == "reward"
    return finding


@pytest.mark.parametrize(
    ("part", "words", "setting"),
    [
        (Part.FUNCTION, "for rewards alone", "raise reward.workers"),
        (Part.TESTS, "for test results alone", "raise reward.code_tests.workers"),
        (Part.JUDGE, "for scores by the judge alone", "raise reward.judge.workers"),
    ],
)
def test_the_part_that_holds_up_training_is_named_with_its_setting(
    tmp_path: Path, part: Part, words: str, setting: str
) -> None:
    finding = the_wait(slow_part(tmp_path, part, queued_s=19.0))
    assert words in finding.what
    assert "% of the last 4 steps" in finding.what
    assert finding.suggestion.startswith(setting)


def test_more_workers_are_not_suggested_where_no_score_waits_for_one(tmp_path: Path) -> None:
    finding = the_wait(slow_part(tmp_path, Part.TESTS))
    assert "raise reward.code_tests.workers" not in finding.suggestion
    assert 'set reward.code_tests.timeouts to "adaptive"' in finding.suggestion
    assert "more workers would not help" in finding.suggestion


def test_what_can_make_a_judge_faster_depends_on_where_it_is(tmp_path: Path) -> None:
    run = slow_part(tmp_path, Part.JUDGE, queued_s=19.0, is_streamed=False)
    configure(run, judge={"url": None, "placement": "shared", "memory_gb": 4.0})
    mine = the_wait(run).suggestion
    assert 'set reward.judge.placement to "own", or raise reward.judge.memory_gb' in mine
    assert 'set reward.timing to "streamed"' in mine
    configure(run, judge={"url": "http://10.0.0.1:8000/v1", "placement": "shared"})
    assert the_wait(run).suggestion.startswith("raise reward.judge.max_requests")
    assert "placement" not in the_wait(run).suggestion


def failing(tmp_path: Path, part: Part, outcome: Outcome) -> Path:
    """The first score of this part failed."""

    schedule = replace(SCHEDULE, case_time=CaseTime())
    world = World(schedule, random.Random(5))
    world.tell(ev.RunStarted(schedule=schedule))
    advance_until(world, lambda w: any(isinstance(c, do.Score) for c in w.open))
    asked = next(c for c in world.open if isinstance(c, do.Score)).responses[0]
    for each in SCHEDULE.score_parts:
        is_bad = each is part
        score = ev.Scored(
            response=asked,
            outcome=outcome if is_bad else Outcome.OK,
            score=0.0,
            seconds=1.0,
            detail="what went wrong" if is_bad else "",
        )
        event = ev.ResponsesScored(scores=(score,), part=each)
        world.entries.append(Entry(now=world.now, event=event, commands=()))
    return write_journal(tmp_path / "run", world.entries)


FUNCTIONS = [{"function": "code_tests", "timeout_s": None}, {"function": "math_verify", "timeout_s": 2.0}]


@pytest.mark.parametrize(
    ("part", "reward", "words", "setting"),
    [
        (Part.FUNCTION, {}, "the reward function hangs: 1 of the last 1 scores passed their time limit of 10 s",
         "raise reward.timeout_s if"),
        (Part.FUNCTION, {"functions": FUNCTIONS}, "limit of 2 s",
         "raise the timeout_s of math_verify in reward.functions if"),
        (Part.FUNCTION, {"functions": [*FUNCTIONS, {"function": "r.py:f"}]}, "time limit and were",
         "raise the timeout_s of that function in reward.functions, or reward.timeout_s, if"),
        (Part.TESTS, {"code_tests": {"timeout_s": 90.0}}, "the reward code_tests hangs", "reward.code_tests.timeout_s"),
        (Part.JUDGE, {"judge": {"timeout_s": 60.0}}, "the judge hangs", "reward.judge.timeout_s"),
    ],
)  # fmt: skip
def test_a_part_that_hangs_is_named_with_the_setting_of_its_limit(
    tmp_path: Path, part: Part, reward: dict[str, Any], words: str, setting: str
) -> None:
    run = failing(tmp_path, part, Outcome.TIMEOUT)
    configure(run, **reward)
    (finding,) = [finding for finding in examine(run).findings if finding.subject == "reward"]
    assert words in finding.what
    assert setting in finding.suggestion


def test_a_server_that_does_not_answer_was_not_killed(tmp_path: Path) -> None:
    run = failing(tmp_path, Part.JUDGE, Outcome.TIMEOUT)
    configure(run, judge={"timeout_s": 60.0, "url": "http://10.0.0.1:8000/v1"})
    (finding,) = [finding for finding in examine(run).findings if finding.subject == "reward"]
    assert finding.what == "1 of the last 1 requests to http://10.0.0.1:8000/v1 had no usable reply within 60 s"
    assert "raise reward.judge.timeout_s" in finding.suggestion


@pytest.mark.parametrize(("part", "log"), [(Part.FUNCTION, "reward-"), (Part.TESTS, "tests-"), (Part.JUDGE, "judge-")])
def test_a_part_that_fails_is_named_with_its_log(tmp_path: Path, part: Part, log: str) -> None:
    (finding,) = [f for f in examine(failing(tmp_path, part, Outcome.CRASH)).findings if f.subject == "reward"]
    assert "1 crash among the last 1 scores; the last one: what went wrong" in finding.what
    assert f"logs/{log}*.log" in finding.suggestion


RULES = CaseTime(strategy="adaptive", most_s=30.0, least_s=2.0)


@pytest.mark.parametrize(
    ("times", "cuts"),
    [
        (CaseTimes(anchors={0: 4.0}, cuts={0: 3}, num_tried=5), True),
        (CaseTimes(anchors={0: 4.0}, cuts={0: 2}, num_tried=5), False),
        (CaseTimes(anchors={0: 4.0}, cuts={0: 3}, num_tried=3), False),
        (CaseTimes(lifted={0: 30.0}, cuts={0: 5}, num_tried=5), False),
        (CaseTimes(lifted={0: 30.0}, cuts={0: 5, 1: 4}, num_tried=5), True),
        (CaseTimes(), False),
    ],
    ids=["most", "half", "too few", "the longest limit", "another case", "nothing known"],
)
def test_limits_that_cut_most_responses_and_could_be_longer_are_known(times: CaseTimes, cuts: bool) -> None:
    assert cuts_most(times, RULES) is cuts


class Lucky(ThreeParts):
    """A world in which a quick program solves each problem first, and no other program is as quick."""

    def of_part(self, response: ResponseId, part: Part) -> ev.Scored:
        if part is not Part.TESTS:
            return super().of_part(response, part)
        is_first = f"{response.group.source}:{response.group.prompt}" not in self.coordinator.rooms.rewards.case_times
        ran = ev.Scored(response=response, outcome=Outcome.OK, score=1.0, seconds=1.0, is_correct=is_first)
        return ran if is_first else replace(ran, cut_cases=((0, SCHEDULE.case_time.least_s),))


def test_a_problem_whose_limits_cut_most_of_its_responses_is_named(tmp_path: Path) -> None:
    world = Lucky(SCHEDULE, random.Random(1), num_prompts=5)
    world.tell(ev.RunStarted(schedule=SCHEDULE))
    known = world.coordinator.rooms.rewards.case_times
    advance_until(world, lambda w: any(cuts_most(times, SCHEDULE.case_time) for times in known.values()))
    (problem,) = [problem for problem, times in known.items() if cuts_most(times, SCHEDULE.case_time)]
    findings = examine(write_journal(tmp_path / "run", world.entries)).findings
    (finding,) = [finding for finding in findings if finding.subject == "time limits"]
    assert finding.what == f"adaptive time limits cut most of the responses to problem {problem}"
    assert "reward.code_tests.min_case_timeout_s" in finding.suggestion


def test_what_a_tested_program_prints_is_no_word_on_the_disk_of_the_run(tmp_path: Path) -> None:
    entries = finished().entries
    run = write_journal(tmp_path / "run", entries[: len(entries) // 2])
    (run / "logs" / "tests-0.log").write_text("OSError: [Errno 28] No space left on device\n")
    assert "disk" not in subjects(examine(run))
    (run / "logs" / "judge-0.log").write_text("OSError: [Errno 28] No space left on device\n")
    assert "disk" in subjects(examine(run))
