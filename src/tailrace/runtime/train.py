"""``train``: from settings to a finished run, and the words around it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from tailrace.config.settings import Settings
from tailrace.core.errors import ReplayMismatch
from tailrace.observe.journal_file import DamagedJournal
from tailrace.observe.metrics import Row
from tailrace.runtime.local import LocalRun
from tailrace.runtime.run_directory import RunDirectory, write_atomically
from tailrace.runtime.sources import Sources
from tailrace.store.payload_store import DamagedStore, PayloadStore


def say_at_once(line: str) -> None:
    print(line, flush=True)


def train(settings: Settings, say: Callable[[str], None] = say_at_once) -> int:
    """Run to the end. Returns 0 if it is complete, 1 if it stopped early; ``SettingsError`` if it cannot begin."""
    directory = RunDirectory.open(settings)
    try:
        if (result := directory.finished()) is not None:
            say(f"this run is finished: {result['reason']}")
        else:
            result = _run(settings, directory, say)
        if result["is_complete"]:
            write_atomically(directory.result, json.dumps(result, indent=2) + "\n")
        for line in _closing_lines(directory, result):
            say(line)
        return 0 if result["is_complete"] else 1
    finally:
        directory.close()


def _run(settings: Settings, directory: RunDirectory, say: Callable[[str], None]) -> Row:
    try:
        return _run_with_store(settings, directory, say)
    except ReplayMismatch as error:
        # Settings are equal, so the code is not: an older or newer version wrote this journal.
        reason = f"the journal does not fit this version of tailrace ({error}); start in another output_dir"
    except (DamagedJournal, DamagedStore) as error:
        reason = f"{error}; start in another output_dir"
    except OSError as error:
        reason = f"{error.strerror or error} ({error.filename or directory.path})"
    return {"is_complete": False, "reason": reason}


def _run_with_store(settings: Settings, directory: RunDirectory, say: Callable[[str], None]) -> Row:
    with PayloadStore.open(directory.payload) as store:
        sources = Sources.load(settings, store)
        directory.claim_sources(sources.fingerprints)
        for line in sources.notes:
            say(line)
        return asyncio.run(_drive(settings, directory, sources, store, say))


async def _drive(
    settings: Settings, directory: RunDirectory, sources: Sources, store: PayloadStore, say: Callable[[str], None]
) -> Row:
    run = LocalRun(settings, directory, sources, store, say)
    finish = await run.run()
    return {"is_complete": finish.is_complete, "reason": finish.reason, "metrics": run.recorder.summary}


def _closing_lines(directory: RunDirectory, result: Row) -> list[str]:
    if not result["is_complete"]:
        return [
            f"the run ended early: {result['reason']}",
            f"worker logs: {directory.logs}",
            "the same command continues it from here",
        ]
    metrics = result["metrics"]
    scores = [f"{name} {value:.3f}" for name, value in metrics.items() if name.startswith("eval/") and "@" in name]
    return [
        f"done: {result['reason']}; reward {metrics['reward/mean']:.3f}" + "".join(f"; {score}" for score in scores),
        f"checkpoint: {directory.checkpoints / 'latest'}",
        f"metrics:    {directory.metrics}",
    ]
