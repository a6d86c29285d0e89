from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from sim.worlds import response
from tailrace.core.ids import GroupId, ResponseId
from tailrace.observe.prompts import length_trace
from tailrace.sim.lengths import DrawnLengths, TraceLengths, read_trace, uniform


def logs(lengths: DrawnLengths, *, prompts: int, members: int) -> list[list[float]]:
    from math import log

    return [[log(lengths.draw(response(p, m), 0)) for m in range(members)] for p in range(prompts)]


def test_spread_between_prompts_and_within_a_prompt_are_as_asked() -> None:
    rows = logs(DrawnLengths(seed=3, median=5000, between=0.8, within=0.4), prompts=400, members=16)
    assert fmean(pstdev(row) for row in rows) == pytest.approx(0.4 * (15 / 16) ** 0.5, rel=0.05)
    assert pstdev([fmean(row) for row in rows]) == pytest.approx((0.8**2 + 0.4**2 / 16) ** 0.5, rel=0.1)
    ordered = sorted(value for row in rows for value in row)
    assert ordered[len(ordered) // 2] == pytest.approx(8.517, abs=0.12)  # ln 5000


def test_a_share_of_the_prompts_is_long() -> None:
    lengths = DrawnLengths(seed=0, median=100, long_share=0.2, long_median=9000)
    drawn = [lengths.draw(response(p), 0) for p in range(2000)]
    assert set(drawn) == {100, 9000}
    assert drawn.count(9000) / 2000 == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize(("kind", "low", "high"), [("constant", 200, 200), ("uniform", 100, 300), ("normal", 60, 340)])
def test_distributions_without_a_tail_stay_in_their_range(kind: str, low: int, high: int) -> None:
    lengths = DrawnLengths(seed=0, kind=kind, median=200, between=0.25 if kind == "uniform" else 0.1, within=0.1)
    assert all(low <= lengths.draw(response(p, m), 0) <= high for p in range(200) for m in range(4))


def test_lengths_grow_with_the_version_where_asked() -> None:
    lengths = DrawnLengths(seed=0, kind="constant", median=100, drift=0.1)
    assert [lengths.draw(response(0), version) for version in (0, 1, 2)] == [100, 110, 121]


def test_another_attempt_is_another_draw_and_another_epoch_keeps_the_difficulty() -> None:
    lengths = DrawnLengths(seed=0, median=1000, between=2.0, within=0.01)
    first, again = ResponseId(GroupId("train", 0, 4), 0), ResponseId(GroupId("train", 0, 4), 0, 1)
    later = ResponseId(GroupId("train", 1, 4), 0)
    drawn = [lengths.draw(each, 0) for each in (first, again, later)]
    assert len(set(drawn)) > 1
    assert max(drawn) / min(drawn) < 1.1


def test_draws_are_the_same_in_every_process() -> None:
    script = "from tailrace.sim.lengths import uniform; print(uniform(1, 'a', 2))"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(other.stdout) == uniform(1, "a", 2)


def test_censored_lengths_of_a_trace_are_counted_and_go_on_past_its_cap(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([[10, 20, 50], [50, 30, 40]]))
    trace = read_trace(path, cap=None, seed=0)
    assert (trace.cap, trace.num_censored, trace.num_recorded) == (50, 2, 6)
    assert [trace.draw(response(0, m), 0) for m in (0, 1)] == [10, 20]
    assert trace.draw(response(1, 0), 0) > 50
    assert trace.draw(response(2, 4), 0) == 20  # rows and entries repeat


def test_a_file_of_the_rollout_command_says_its_cap(tmp_path: Path) -> None:
    row = length_trace.PromptLengths(source="train", epoch=0, index=0, prompt_length=9, lengths=(10, 20))
    trace = length_trace.LengthTrace(model="tiny", cap=64, group_size=2, prompts=(row,))
    length_trace.write(tmp_path / "lengths.json", trace)
    read = read_trace(tmp_path / "lengths.json", cap=None, seed=0)
    assert (read.cap, read.num_censored, read.draw(response(0, 1), 0)) == (64, 0, 20)


@pytest.mark.parametrize("text", ["{}", "3", "[[1], []]", "not JSON"])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"trace|JSON"):
        read_trace(path, cap=None, seed=0)


def test_a_trace_without_a_cap_takes_its_longest() -> None:
    row = length_trace.PromptLengths(source="", epoch=0, index=0, prompt_length=None, lengths=(1, 2, 3))
    trace = length_trace.LengthTrace(model=None, cap=None, group_size=3, prompts=(row,))
    assert TraceLengths(trace, cap=None, seed=0).cap == 3
