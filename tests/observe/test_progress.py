"""The lines a person reads."""

from __future__ import annotations

from tailrace.core.run.waits import Wait
from tailrace.observe.display.progress import Progress, clock, wait_line

ROW = {
    "step": 7,
    "reward/mean": 0.5,
    "response_length/p50": 18,
    "response_length/p95": 120,
    "response_length/max": 384,
    "perf/tokens_per_s": 4200.4,
    "timing_s/step": 2.0,
    "timing_s/gen": 1.5,
    "timing_s/update_actor": 0.4,
    "reward/num_error": 0,
    "reward/num_timeout": 2,
    "reward/num_crash": 0,
    "reward/num_invalid": 0,
}


def test_a_step_line_says_what_matters() -> None:
    assert Progress(max_steps=60).line(ROW) == (
        "step  7/60  reward 0.500  length p50/p95/max 18/120/384  4,200 tok/s  2.00 s (gen 1.50, train 0.40)"
        "  ETA 1:46  rewards failed: 2 timeout"
    )


def test_a_step_line_names_the_evaluation_before_it_and_the_time_left_counts_it() -> None:
    line = Progress(max_steps=60).line(ROW | {"timing_s/eval": 1.0})
    assert "2.00 s (gen 1.50, train 0.40)  eval 1.00 s  ETA 2:39" in line


def test_a_step_line_names_the_wait_for_rewards_where_it_is_worth_a_word() -> None:
    long, short = (Progress(max_steps=60).line(ROW | {"timing_s/reward_exposed": seconds}) for seconds in (0.3, 0.1))
    assert "(gen 1.50, rewards 0.30, train 0.40)" in long
    assert "(gen 1.50, train 0.40)" in short


def test_the_first_step_holds_the_start_and_does_not_count_once_there_is_another() -> None:
    progress, rows = (
        Progress(max_steps=10),
        [ROW | {"step": n, "timing_s/step": s} for n, s in ((1, 30), (2, 2), (3, 3))],
    )
    assert [round(progress.left_s(row), 6) for row in rows] == [270.0, 16.0, 15.4]


def test_an_evaluation_line_names_its_sets() -> None:
    row = {"step": 0, "eval/heldout/avg@1": 0.5, "eval/heldout/pass@1": 0.5, "eval/heldout/clip_ratio": 0.0}
    assert Progress(max_steps=60).line(row) == "eval at step 0: heldout/avg@1 0.500  heldout/pass@1 0.500"


def test_the_oldest_wait_is_named_with_age_and_limit() -> None:
    waits = [Wait(what="b", since=5.0, limit_s=60.0), Wait(what="reward of x", since=2.0, limit_s=30.0)]
    assert wait_line(waits, now=14.0) == "waiting for reward of x: 12 s (limit 30 s)"


def test_durations_read_like_a_clock() -> None:
    assert [clock(s) for s in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]
