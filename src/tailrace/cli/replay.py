"""Feed a journal back to the coordinator: `tailrace replay RUN_OR_JOURNAL [--schedule PRESET]`.

Without options, the coordinator must give the same commands as in the journal. With `--schedule` the run is simulated
under another preset, with the lengths and costs of the journal. Lengths of responses that did not finish are drawn at
random; their number is printed.

Exit status: 0 done, 1 the commands differ, 2 there is no such journal.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tailrace.config import presets
from tailrace.config.schedule_builder import apply_preset, fitted_preset
from tailrace.config.schedule_overrides import ScheduleOverrides
from tailrace.core.coordinator import Coordinator
from tailrace.core.errors import ReplayMismatch
from tailrace.core.journal import Entry, replay_all
from tailrace.observe.journal import journal_file
from tailrace.observe.journal.run_files import RunFiles
from tailrace.observe.schedules import schedule_table
from tailrace.observe.schedules.comparison import figures_of
from tailrace.policies.strategies import policies_of


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run directory, or a journal.jsonl")
    parser.add_argument("--schedule", metavar="PRESET", help="simulate the run under another preset")


def run(options: argparse.Namespace) -> int:
    try:
        journal = options.run if options.run.is_file() else RunFiles.find(options.run).journal
        entries = [entry for _, entry in journal_file.read(journal)]
        if not entries:
            raise ValueError(f"{journal} holds no complete entry")
        if options.schedule is not None:
            _simulate(RunFiles(path=journal.parent), entries, options.schedule)
            return 0
        count = replay_all(entries, lambda schedule: Coordinator(schedule, policies=policies_of(schedule)))
        print(f"{count} entries, every command as recorded")
    except ReplayMismatch as error:
        print(f"tailrace: the commands are different: {error}", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"tailrace: {error}", file=sys.stderr)
        return 2
    return 0


def _simulate(files: RunFiles, entries: Sequence[Entry], name: str) -> None:
    from tailrace.sim import calibrate  # needs numpy, which an exact replay does without
    from tailrace.sim.fitting.machine_facts import MachineFacts
    from tailrace.sim.one_size import LEFT_OUT, has_other_sizes
    from tailrace.sim.other_presets import for_other_presets

    presets.check_trains(name)
    schedule = calibrate.schedule_of(entries)
    if not schedule.trains:
        raise ValueError("the run did not train, so there is no step to simulate")
    # A journal does not say whether another preset would have had quotas.
    plain, given = for_other_presets(replace(schedule, has_quotas=False), files.config())
    overrides = ScheduleOverrides(preset=name)
    chosen = apply_preset(plain, overrides, given)
    for part in fitted_preset(plain, overrides, given)[1]:
        print(part.line(name))
    if has_other_sizes(calibrate.recorded_schedule(entries)):
        print(LEFT_OUT)
    machine = MachineFacts.of(files.config(), num_prompts=schedule.epoch_size)
    calibration = calibrate.calibrate([entries], machine)
    other, num_drawn = calibrate.simulate([entries], calibration, chosen)
    same, _ = calibrate.simulate([entries], calibration, schedule)
    shown = {"recorded": figures_of(entries), "simulated": figures_of(same), name: figures_of(other)}
    print("\n".join(schedule_table.lines(schedule_table.cells(shown))))
    if calibration.assumption is not None and any(map(calibration.rests_on_assumption, (schedule, chosen))):
        print(f"{calibration.assumption}.")
    print(f"{num_drawn} lengths were not seen to their end in the journal and are drawn")
