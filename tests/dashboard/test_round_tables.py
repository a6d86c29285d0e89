"""Short and long rounds side by side: means of what the metrics say of each."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import fmean

import pytest

from core.world import World
from dashboard.test_report import finished, page_of, streamed
from observe.runs import write_journal
from tailrace.core.schedule import Leftovers, Schedule
from tailrace.dashboard.round_tables import round_tables, rounds_heading
from tailrace.observe.account import Account

SECONDS, TOKENS = "Mean seconds of a step", "Responses and tokens of a round"


@pytest.fixture(scope="module")
def account() -> Account:
    return Account.of(streamed().entries)


def cells(account: Account) -> dict[str, dict[str, tuple[str, ...]]]:
    """The cells of each line of each table."""
    tables = round_tables(account.steps, account.parts.steps)
    return {table.title: {row[0]: row[1:] for row in table.rows} for table in tables}


def number(cell: str) -> float:
    return float(cell.split()[0].replace(",", ""))


def test_each_kind_of_round_has_its_means_and_its_highest(account: Account) -> None:
    found = cells(account)
    kinds = [[row for row in account.steps if row["groups/is_long_round"] == kind] for kind in (0, 1)]
    assert all(kinds)
    assert [int(cell) for cell in found[SECONDS]["steps"]] == [len(rows) for rows in kinds]
    for words, name in [
        ("a step", "timing_s/step"), ("rewards hidden", "timing_s/reward_hidden"),
        ("rewards exposed", "timing_s/reward_exposed"), ("training", "timing_s/update_actor"),
        ("training hidden by rollout", "timing_s/update_hidden"),
    ]:  # fmt: skip
        means = [fmean(row[name] for row in rows) for rows in kinds]
        assert [number(cell) for cell in found[SECONDS][words]] == pytest.approx(means, abs=0.006)
    longest = [max(row["round/longest_response"] for row in rows) for rows in kinds]
    assert [number(cell) for cell in found[TOKENS]["longest response"]] == longest
    sent = [fmean(row["round/num_responses"] for row in rows) for rows in kinds]
    assert [number(cell) for cell in found[TOKENS]["responses sent"]] == pytest.approx(sent, abs=0.6)


def test_rollout_and_its_hidden_training_are_seconds_of_the_phases(account: Account) -> None:
    found, parts = cells(account)[SECONDS], account.parts.steps
    weights = [int(cell) for cell in found["steps"]]
    rollout_s = sum(weight * number(cell) for weight, cell in zip(weights, found["rollout"], strict=True))
    told = sum(each.get("generate", 0.0) + each.get("generate and train", 0.0) for each in parts)
    assert rollout_s == pytest.approx(told, abs=0.01 * len(parts))
    assert max(number(cell) for cell in found["training hidden by rollout"]) > 0


def test_a_run_with_one_kind_of_round_has_one_column() -> None:
    account = Account.of(finished().entries)
    (seconds, tokens) = round_tables(account.steps, account.parts.steps)
    assert seconds.head == tokens.head == ("", "all rounds")
    assert rounds_heading(account.steps) == "Rounds"


def test_a_schedule_without_rounds_has_only_the_seconds_of_its_steps() -> None:
    schedule = Schedule(
        train_source="train", batch_size=2, group_size=2, max_steps=3, leftovers=Leftovers.KEEP, max_staleness=1
    )
    world = World(schedule, random.Random(1))
    world.run()
    account = Account.of(world.entries)
    (table,) = round_tables(account.steps, account.parts.steps)
    assert (table.title, table.head) == (SECONDS, ("", "all steps"))
    assert rounds_heading(account.steps) == "Steps (this schedule has no rounds)"


def test_rows_of_older_checkpoints_without_rounds_are_left_out_of_the_means(account: Account) -> None:
    """A run that was resumed from one has a first row that says nothing of its round."""
    first = {name: value for name, value in account.steps[0].items() if not name.startswith("round/")}
    tables = round_tables([first, *account.steps[1:]], account.parts.steps)
    assert [table.title for table in tables] == [SECONDS, TOKENS]


def test_before_the_first_step_there_is_no_table() -> None:
    assert round_tables([], []) == []
    assert rounds_heading([]) == "Rounds"


def test_the_page_compares_short_and_long_rounds(tmp_path: Path) -> None:
    page = page_of(write_journal(tmp_path / "run", streamed().entries))
    assert "Short and long rounds" in page.words
    assert "training hidden by rollout" in page.words
    assert "rounds" in page.ids
