"""The ``train`` command: take settings to a finished run, and print how it ended."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tailrace.config.load import SettingsError
from tailrace.config.presets import ROLLOUT_ONLY
from tailrace.config.rules import evaluation_left_out, forgotten_evaluation
from tailrace.config.settings import Settings
from tailrace.core.errors import CoreError, ReplayMismatch
from tailrace.observe.journal.disk import says_disk_full
from tailrace.observe.journal.journal_file import DamagedJournal
from tailrace.observe.metrics.rows import Row
from tailrace.observe.sinks import check_loggers
from tailrace.runtime.gpus import card_defaults
from tailrace.runtime.inputs.lengths import refused_lengths
from tailrace.runtime.inputs.sources import Sources
from tailrace.runtime.launchers.place import WorkerPlace
from tailrace.runtime.local import LocalRun
from tailrace.runtime.open_place import check_runtime, open_place
from tailrace.runtime.placed_schedule import placed
from tailrace.runtime.record.run_directory import RunDirectory, write_atomically
from tailrace.store.payload_store import PayloadStore
from tailrace.store.record_frame import DamagedStore

Say = Callable[[str], None]
Conclude = Callable[[RunDirectory, Sources], Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended."""

    is_complete: bool
    reason: str
    directory: Path
    metrics: Row
    """The newest value of every metric."""

    @property
    def checkpoint(self) -> Path:
        """The newest checkpoint, in Hugging Face format; with LoRA, an adapter in PEFT format."""
        return self.directory / "checkpoints" / "latest"

    @property
    def exit_code(self) -> int:
        return 0 if self.is_complete else 1

    def rows(self) -> list[Row]:
        """All of ``metrics.jsonl``."""
        return [json.loads(line) for line in (self.directory / "metrics.jsonl").read_text().splitlines()]


def say_at_once(line: str) -> None:
    """Print a line. If nobody can read it any more, the run goes on without."""
    with suppress(OSError):  # the terminal is gone: a run that was asked to stop by SIGHUP still saves
        try:
            print(line, flush=True)
        except BrokenPipeError:
            _leave_unread()


def _leave_unread() -> None:
    """Let all further output go nowhere: the reader (`| head`) is gone. The exit status is then that of the run."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    print("tailrace: nobody reads the output any more; the run goes on without it", file=sys.stderr, flush=True)


def train(settings: Settings, say: Say = say_at_once, inputs: Mapping[Path, bytes] | None = None) -> RunResult:
    """Run to the end, or continue the run in ``output_dir``; ``SettingsError`` if it cannot start.

    ``inputs``: contents of files that the settings name and that must be written to ``output_dir`` first.
    """
    check_trains(settings)
    return carry_out(settings, say, closing_lines=_closing_lines, inputs=inputs)


def check_trains(settings: Settings) -> None:
    if settings.schedule.preset == ROLLOUT_ONLY:
        raise SettingsError(f"schedule.preset '{ROLLOUT_ONLY}' does not train: use `tailrace rollout`")


def carry_out(
    settings: Settings,
    say: Say,
    *,
    closing_lines: Callable[[RunResult], list[str]],
    conclude: Conclude | None = None,
    inputs: Mapping[Path, bytes] | None = None,
) -> RunResult:
    """Run any schedule. ``conclude`` is called after a complete run; it may write files, and returns more metrics."""
    directory = RunDirectory.open(settings)
    try:
        if (stored := directory.finished(settings)) is not None:
            say(f"this run is finished: {stored['reason']}")
        else:
            directory.add_inputs(inputs or {})
            settings, line = card_defaults.resolve(settings, directory.stored_settings())
            sources = prepare_in(directory, settings)
            for change in directory.changes(settings):
                say(change)
            if line is not None:
                say(line)
            directory.begin(settings, sources.fingerprints)
            stored = _run(settings, directory, sources, say, conclude)
            _keep_outcome(stored, directory)
        result = RunResult(directory=directory.path, metrics=stored.pop("metrics", {}), **stored)
        for line in closing_lines(result) if result.is_complete else _early_lines(result):
            say(line)
        return result
    finally:
        directory.close()


def prepare_in(directory: RunDirectory, settings: Settings) -> Sources:
    """Read and check everything that a new or continued run in this directory needs."""
    changed = directory.changed_evaluation(settings)
    return prepare(settings, has_begun=directory.has_begun, changed_evaluation=changed)


def prepare(settings: Settings, *, has_begun: bool = False, changed_evaluation: Set[str] = frozenset()) -> Sources:
    """Read and check everything the run needs, before anything is written to the run directory.

    ``has_begun``: the run is continued. What it was allowed to begin with is then a warning among the notes.
    ``changed_evaluation``: names of evaluation sets that a continued run has not had so. They are checked as in a new
    run.
    """
    check_runtime(settings)
    try:
        check_loggers(settings.logger)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    sources = Sources.load(settings)
    objections = [*forgotten_evaluation(settings), *refused_lengths(sources.lengths, sources.positions)]
    refused = [each for each in objections if not has_begun or each.evaluation_sets & changed_evaluation]
    if refused:
        raise SettingsError("\n".join(each.refusal for each in refused))
    notes = [*evaluation_left_out(settings), *(each.warning for each in objections)]
    return replace(sources, notes=(*sources.notes, *notes))


def _keep_outcome(stored: Row, directory: RunDirectory) -> None:
    if stored["is_complete"]:
        write_atomically(directory.result, json.dumps(stored, indent=2) + "\n")
        directory.stop_note.remove()
    else:
        directory.stop_note.write(stored["reason"])


def _run(settings: Settings, directory: RunDirectory, sources: Sources, say: Say, conclude: Conclude | None) -> Row:
    try:
        return _run_with_store(settings, directory, sources, say, conclude)
    except ReplayMismatch as error:
        # The settings are equal, so another version of tailrace wrote this journal.
        reason = f"the journal does not fit this version of tailrace ({error}); start in another output_dir"
    except CoreError as error:
        reason = f"internal error in the coordinator ({error}); please report it and attach journal.jsonl"
    except (DamagedJournal, DamagedStore) as error:
        reason = f"{error}; start in another output_dir"
    except OSError as error:
        reason = f"{error.strerror or error} ({error.filename or directory.path})"
    return {"is_complete": False, "reason": reason}


def _run_with_store(
    settings: Settings, directory: RunDirectory, sources: Sources, say: Say, conclude: Conclude | None
) -> Row:
    with PayloadStore.open(directory.payload) as store:
        for line in sources.notes:
            say(line)
        stop = StopButton()
        with open_place(settings, logs=directory.logs, trains=sources.schedule.trains, say=say) as place:
            schedule = placed(sources.schedule, settings, place.plan, model=sources.model, say=say)
            sources = replace(sources, schedule=schedule)
            stored = _finish(_drive(settings, directory, sources, store, say, stop, place), stop)
        if conclude is not None and stored["is_complete"]:
            store.sync()
            stored["metrics"] |= conclude(directory, sources)
        return stored


async def _drive(
    settings: Settings,
    directory: RunDirectory,
    sources: Sources,
    store: PayloadStore,
    say: Say,
    stop: StopButton,
    place: WorkerPlace,
) -> Row:
    run = LocalRun(settings, directory, sources, store, say, place)
    loop = asyncio.get_running_loop()
    stop.connect(lambda: loop.call_soon_threadsafe(run.ask_to_stop))
    with _gc_frozen(), _threads_in_short_turns():
        finish = await run.run()
    return {"is_complete": finish.is_complete, "reason": finish.reason, "metrics": run.recorder.summary}


@contextmanager
def _gc_frozen() -> Iterator[None]:
    """Exempt every object loaded so far from garbage collection.

    They live until the run ends. A full collection would scan them all and stop the controller for a tenth of a second.
    """
    if gc.get_freeze_count():  # the caller froze them already
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _threads_in_short_turns() -> Iterator[None]:
    """Set Python's thread switch interval to 1 ms instead of 5 ms, so that computing threads delay the event loop
    less."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, 0.001))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class StopButton:
    """Stops a run from another thread. It may be pressed before the run is connected."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_pressed = False
        self._stop: Callable[[], object] | None = None

    def connect(self, stop: Callable[[], object]) -> None:
        with self._lock:
            self._stop = stop
        if self._is_pressed:
            stop()

    def press(self) -> None:
        with self._lock:
            self._is_pressed = True
        if self._stop is not None:
            self._stop()


def _finish(coroutine: Coroutine[Any, Any, Row], stop: StopButton) -> Row:
    """Run the coroutine to its end, also inside a running event loop (a notebook). There an interrupt stops the run."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    outcome: list[Row | BaseException] = []
    has_ended = threading.Event()  # an interrupted ``join`` takes a thread that runs for one that has ended

    def work() -> None:
        try:
            outcome.append(asyncio.run(coroutine))
        except BaseException as error:  # noqa: BLE001  whatever it is, it is raised again in the caller's thread
            outcome.append(error)
        has_ended.set()

    thread = threading.Thread(target=work, name="tailrace")
    thread.start()
    while not has_ended.is_set():
        try:
            has_ended.wait()
        except KeyboardInterrupt:
            # The run owns the directory until its thread has ended: leaving now would let a second one in.
            stop.press()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _early_lines(result: RunResult) -> list[str]:
    is_full = says_disk_full(result.reason)
    return [
        f"the run ended early: {result.reason}",
        f"worker logs: {result.directory / 'logs'}",
        f"free some space on the disk of {result.directory}, then the same command continues it from here"
        if is_full
        else "the same command continues it from here",
    ]


def _closing_lines(result: RunResult) -> list[str]:
    metrics = result.metrics
    scores = [f"{name} {value:.3f}" for name, value in metrics.items() if name.startswith("eval/") and "@" in name]
    if "reward/mean" in metrics:  # not if the metrics were switched off
        scores.insert(0, f"reward {metrics['reward/mean']:.3f}")
    return [
        f"done: {result.reason}" + "".join(f"; {score}" for score in scores),
        f"checkpoint: {result.checkpoint}",
        f"metrics:    {result.directory / 'metrics.jsonl'}",
    ]
