"""The doctor names the cause in prepared situations, and never touches the run."""

from __future__ import annotations

import fcntl
import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from core.world import World
from observe.runs import advance_until, write_checkpoint, write_journal
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import InstanceId, Version
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Limits, Schedule
from tailrace.dashboard.checks import disk
from tailrace.dashboard.diagnosis import FINISHED, RUNNING, STOPPED, Diagnosis
from tailrace.dashboard.doctor import as_json, examine, lines
from tailrace.observe.journal.journal_file import JournalFile

SCHEDULE = Schedule(
    train_source="train", batch_size=2, group_size=4, max_steps=3, limits=Limits(progress_s=300.0, reward_s=130.0)
)


@contextmanager
def alive(run: Path) -> Iterator[None]:
    """A controller holds the lock."""
    with (run / "lock").open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        yield


def started(schedule: Schedule = SCHEDULE) -> World:
    world = World(schedule, random.Random(5))
    world.tell(ev.RunStarted(schedule=schedule))
    return world


def finished_run(tmp_path: Path) -> Path:
    world = World(SCHEDULE, random.Random(5))
    world.run()
    run = write_journal(tmp_path / "run", world.entries)
    write_checkpoint(run, SCHEDULE, world.entries, 3)
    return run


def subjects(diagnosis: Diagnosis) -> list[str]:
    return [finding.subject for finding in diagnosis.findings]


def wall(run: Path, later_s: float) -> float:
    """The time of day, so long after the journal last grew."""
    return (run / "journal.jsonl").stat().st_mtime + later_s


def test_a_finished_run_is_fine(tmp_path: Path) -> None:
    diagnosis = examine(finished_run(tmp_path))
    assert diagnosis.headline.startswith("the run is finished: 3 of 3 steps")
    assert diagnosis.findings == ()
    assert "nothing is wrong" in lines(diagnosis)


@pytest.mark.parametrize(("life", "found"), [(FINISHED, []), (STOPPED, ["disk"]), (RUNNING, ["disk"])])
def test_little_room_for_the_next_checkpoint_matters_while_one_may_come(
    tmp_path: Path, life: str, found: list[str]
) -> None:
    run = examine(finished_run(tmp_path)).run
    full = replace(run, life=life, machine=replace(run.machine, disk_free=1000))
    assert [finding.subject for finding in disk(full)] == found


def test_a_run_that_stopped_after_one_step_says_so(tmp_path: Path) -> None:
    world = started()
    advance_until(world, lambda w: w.coordinator.version == 1)
    (finding,) = examine(write_journal(tmp_path / "run", world.entries)).findings
    assert finding.what.startswith("it stopped after 1 step: ")


def test_a_killed_engine_is_named_with_its_end(tmp_path: Path) -> None:
    world = started()
    advance_until(world, lambda w: w.coordinator.version == 1 and any(w.running.values()))
    world.lose(next(iter(world.running)), "the process was killed by signal 9")
    run = write_journal(tmp_path / "run", world.entries)
    with alive(run):
        diagnosis = examine(run, wall=wall(run, 1.0))
    assert subjects(diagnosis) == ["instance 0"]
    assert "its engine was lost once; the last time: the process was killed by signal 9" in diagnosis.findings[0].what
    assert "rollout.kv_tokens" in diagnosis.findings[0].suggestion
    assert diagnosis.headline.startswith("the run goes on")


def test_a_reward_that_was_killed_for_its_time_is_called_hanging(tmp_path: Path) -> None:
    world = started()
    advance_until(world, lambda w: any(isinstance(c, do.Score) for c in w.open))
    (ask,) = [c for c in world.open if isinstance(c, do.Score)][:1]
    world.open.remove(ask)
    failed = ev.Scored(response=ask.responses[0], outcome=Outcome.TIMEOUT, score=0.0, seconds=10.0)
    world.tell(ev.ResponsesScored(scores=(failed,)))
    run = write_journal(tmp_path / "run", world.entries)
    with alive(run):
        diagnosis = examine(run, wall=wall(run, 1.0))
    assert subjects(diagnosis) == ["reward"]
    assert "the reward function hangs: 1 of the last 1 scores passed their time limit of 10 s" in (
        diagnosis.findings[0].what
    )


def test_a_reward_that_was_called_off_is_no_failure(tmp_path: Path) -> None:
    world = started()
    advance_until(world, lambda w: any(isinstance(c, do.Score) for c in w.open))
    (ask,) = [c for c in world.open if isinstance(c, do.Score)][:1]
    called_off = ev.Scored(response=ask.responses[0], outcome=Outcome.ABORTED, score=0.0, seconds=0.0)
    entry = Entry(now=world.now, event=ev.ResponsesScored(scores=(called_off,)), commands=())
    run = write_journal(tmp_path / "run", [*world.entries, entry])
    assert "reward" not in subjects(examine(run))


def test_a_reward_that_does_not_come_back_is_a_wait_with_age_and_limit(tmp_path: Path) -> None:
    world = started()
    advance_until(world, lambda w: bool(w.open) and isinstance(w.open[-1], do.Score))
    run = write_journal(tmp_path / "run", world.entries)
    with alive(run):
        diagnosis = examine(run, wall=wall(run, 100.0))
    (finding,) = [f for f in diagnosis.findings if "reward of" in f.what]
    assert "for 100 s; after 130 s the run fails" in finding.what
    assert any("waiting for reward of" in line for line in lines(diagnosis))


@pytest.mark.parametrize("source", ["checkpoint", "log"])
def test_a_full_disk_is_named_whoever_said_it(tmp_path: Path, source: str) -> None:
    world = started(replace(SCHEDULE, save_interval=1))
    advance_until(world, lambda w: any(isinstance(c, do.SaveCheckpoint) for c in w.open))
    if source == "checkpoint":
        world.tell(ev.CheckpointFailed(version=Version(1), reason="[Errno 28] No space left on device: 'model'"))
    run = write_journal(tmp_path / "run", world.entries)
    if source == "log":
        (run / "logs" / "training.log").write_text("step 1\nOSError: [Errno 28] No space left on device\n")
    diagnosis = examine(run)
    assert subjects(diagnosis) == ["disk", "run"]
    assert diagnosis.findings[0].what.startswith("the disk was full: ")
    assert "No space left on device" in diagnosis.findings[0].what


def killed_run(tmp_path: Path, log: str) -> Path:
    """Cut off in the middle; `log` holds a complaint of a full disk."""
    world = started()
    advance_until(world, lambda w: w.coordinator.version == 1)
    run = write_journal(tmp_path / "run", world.entries)
    (run / "logs" / log).write_text("OSError: [Errno 28] No space left on device\n")
    return run


def test_a_run_that_gave_another_reason_is_believed_more_than_its_logs(tmp_path: Path) -> None:
    run = killed_run(tmp_path, "training.log")
    assert subjects(examine(run)) == ["disk", "run"]
    (run / "stopped.json").write_text(json.dumps({"reason": "a signal asked the run to stop"}))
    diagnosis = examine(run)
    assert subjects(diagnosis) == ["run"]
    assert "a signal asked the run to stop" in diagnosis.findings[0].what


def test_a_log_that_was_silent_since_the_last_start_says_nothing_of_this_end(tmp_path: Path) -> None:
    run = killed_run(tmp_path, "training.log")
    note = run / "stopped.json"
    note.write_text(" " * 4096)
    began = note.stat().st_mtime
    os.utime(run / "logs" / "training.log", (began - 60.0, began - 60.0))
    assert subjects(examine(run)) == ["run"]
    os.utime(run / "logs" / "training.log", (began + 60.0, began + 60.0))
    assert subjects(examine(run)) == ["disk", "run"]


def test_what_a_reward_function_prints_is_no_word_on_the_disk_of_the_run(tmp_path: Path) -> None:
    assert subjects(examine(killed_run(tmp_path, "reward-0.log"))) == ["run"]


def test_the_note_of_a_start_without_an_entry_is_newer_than_the_journal(tmp_path: Path) -> None:
    world = started()
    world.tell(ev.StopRequested(reason="stopped by hand"))
    advance_until(world, lambda w: any(isinstance(c, do.FinishRun) for e in w.entries for c in e.commands))
    run = write_journal(tmp_path / "run", world.entries)
    assert "stopped by hand" in examine(run).findings[-1].what
    (run / "stopped.json").write_text(json.dumps({"reason": "the payload store is damaged"}))
    assert "the payload store is damaged" in examine(run).findings[-1].what


def straggling() -> World:
    """Everything of the first step is scored but one response, which goes on."""
    world = started()
    advance_until(world, lambda w: any(isinstance(c, do.Submit) for c in w.open))
    world.advance()
    advance_until(world, lambda w: sum(len(running) for running in w.running.values()) == 8)
    ((instance, running),) = world.running.items()
    *quick, slow = list(running)
    ends = tuple(ev.Finished(response=r, length=9, finish=Finish.STOP) for r in quick)
    going = (ev.Progressed(response=slow, length=12),)
    world.now += 1.0
    world.tell(ev.RolloutReported(instance=instance, version=Version(0), progressed=going, finished=ends))
    world.now += 1.0
    world.tell(ev.ResponsesScored(scores=tuple(world.score(r) for r in quick)))
    world.now += 42.0
    more = (ev.Progressed(response=slow, length=350),)
    world.tell(ev.RolloutReported(instance=instance, version=Version(0), progressed=more))
    return world


def test_a_straggler_is_named_with_its_length_and_who_waits_for_it(tmp_path: Path) -> None:
    run = write_journal(tmp_path / "run", straggling().entries)
    with alive(run):
        diagnosis = examine(run, wall=wall(run, 0.0))
    assert subjects(diagnosis) == ["straggler"]
    assert "on instance 0 (350 tokens so far); the other 7 of this step have been ready for 42 s" in (
        diagnosis.findings[0].what
    )


def test_reports_that_were_refused_are_counted_and_the_last_is_named(tmp_path: Path) -> None:
    world = straggling()
    event = ev.InstanceStarted(instance=InstanceId(0), version=Version(0))
    world.tell(event)
    run = write_journal(tmp_path / "run", world.entries)
    with alive(run):
        diagnosis = examine(run, wall=wall(run, 0.0))
    assert subjects(diagnosis) == ["reports", "straggler"]
    assert "1 reports of workers were repeated" in diagnosis.findings[0].what
    assert "instance 0 was not being started" in diagnosis.findings[0].what


def test_a_dead_run_waits_for_nothing_and_can_be_continued(tmp_path: Path) -> None:
    diagnosis = examine(write_journal(tmp_path / "run", straggling().entries))
    assert subjects(diagnosis) == ["run"]
    assert "its process ended without a word" in diagnosis.findings[0].what
    assert "run the same command again" in diagnosis.findings[0].suggestion
    assert as_json(diagnosis)["waits"] == []


def test_a_corrupted_checkpoint_is_named_with_its_file(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    weights = run / "checkpoints" / "step_3" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    diagnosis = examine(run)
    assert subjects(diagnosis) == ["checkpoint"]
    assert "checkpoint step_3 is damaged: step_3/model.safetensors has" in diagnosis.findings[0].what
    assert "continues from the beginning" in diagnosis.findings[0].suggestion


def test_a_damaged_journal_is_a_finding_and_not_a_traceback(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    text = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run / "journal.jsonl").write_bytes(b"".join([*text[:9], b"{broken}\n", *text[10:]]))
    assert "journal" in subjects(examine(run))


def test_the_doctor_leaves_no_trace(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))
    examine(run)
    assert sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*")) == before


def test_every_finding_comes_with_a_suggestion_and_json_holds_it_all(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    (run / "checkpoints" / "step_3" / "run_state.json").unlink()
    found = as_json(examine(run))
    assert found["state"] == "finished"
    assert all(finding["suggestion"] for finding in found["findings"])
    assert set(found["idle_s"]) == {"instance 0", "rewards", "trainer"}
    assert found["versions"]["tailrace"]
    assert found["disk"]["free"] > 0


def test_no_wait_of_a_growing_run_is_younger_than_nothing(tmp_path: Path) -> None:
    """The journal grows while the doctor reads it: all that it says is about the same moment."""
    schedule = replace(SCHEDULE, max_steps=15)
    world = World(schedule, random.Random(5))
    world.run()
    run = write_journal(tmp_path / "run", world.entries[:100])
    ages: list[float] = []
    with alive(run):
        growing = Thread(target=append_slowly, args=(run, world.entries[100:]))
        growing.start()
        while growing.is_alive():
            ages += [wait["age_s"] for wait in as_json(examine(run))["waits"]]
        growing.join()
    assert ages
    assert min(ages) >= 0


def append_slowly(run: Path, entries: list[Entry]) -> None:
    journal = JournalFile.open(run / "journal.jsonl")
    for entry in entries:
        journal.append(entry)
        time.sleep(0.0005)
    journal.close()
