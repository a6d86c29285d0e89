"""Reading a run directory changes nothing in it, and says whether somebody is at work there."""

from __future__ import annotations

import fcntl
import random
from pathlib import Path

import pytest

from core.world import World
from observe.runs import advance_until, write_checkpoint, write_journal
from tailrace.core import events as ev
from tailrace.core.schedule import Schedule
from tailrace.observe.account import Account
from tailrace.observe.journal.recollection import recollect
from tailrace.observe.journal.run_files import RunFiles

SCHEDULE = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=4)


@pytest.fixture
def world() -> World:
    world = World(SCHEDULE, random.Random(3))
    world.tell(ev.RunStarted(schedule=SCHEDULE))
    advance_until(world, lambda w: w.coordinator.version == 3 and any(w.running.values()))
    return world


def test_a_run_is_alive_while_its_lock_is_held(tmp_path: Path, world: World) -> None:
    files = RunFiles.find(write_journal(tmp_path / "run", world.entries))
    assert not files.is_alive()
    with (files.path / "lock").open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert files.is_alive()
    assert not files.is_alive()


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no run directory"):
        RunFiles.find(tmp_path / "nothing")
    with pytest.raises(ValueError, match="holds no run"):
        RunFiles.find(tmp_path)


def test_checkpoints_are_found_by_number_and_unfinished_ones_are_not(tmp_path: Path, world: World) -> None:
    run = write_journal(tmp_path / "run", world.entries)
    for name in ("step_9", "step_10", "step_12.partial"):
        (run / "checkpoints" / name).mkdir(parents=True)
    assert [path.name for path in RunFiles.find(run).checkpoints()] == ["step_9", "step_10"]


@pytest.mark.parametrize("damage", ["none", "newest", "all"])
def test_the_state_at_the_journals_end_is_rebuilt_from_whatever_can_be_read(
    tmp_path: Path, world: World, damage: str
) -> None:
    run = write_journal(tmp_path / "run", world.entries)
    steps = [i for i, e in enumerate(world.entries) if isinstance(e.event, ev.StepTrained)]
    folders = [write_checkpoint(run, SCHEDULE, world.entries[: index + 1], n) for n, index in enumerate(steps[:2], 1)]
    for folder in {"none": [], "newest": folders[-1:], "all": folders}[damage]:
        (folder / "run_state.json").write_text("{torn")
    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))
    found = recollect(RunFiles.find(run))
    assert found.waits() == world.coordinator.waits() != []
    assert (found.coordinator.version, found.now) == (3, world.entries[-1].now)
    assert sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*")) == before


def test_an_account_holds_what_the_metrics_say_and_who_was_lost(world: World) -> None:
    world.lose(next(iter(world.running)), "killed by signal 9")
    account = Account.of(world.entries)
    assert [row["step"] for row in account.steps] == [1, 2, 3]
    assert [(loss.instance, loss.reason) for loss in account.losses] == [(0, "killed by signal 9")]
    assert account.finish is None
    assert account.version == 3
