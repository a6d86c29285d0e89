"""The demand of a real run, from its journal. The run may be going on."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path

from tailrace.cluster.demand.operations import Operation, trace_of
from tailrace.cluster.demand.trace import DemandTrace
from tailrace.core.journal import Entry
from tailrace.observe.account import MISFITS
from tailrace.observe.demand.job_demand import JobDemand
from tailrace.observe.journal import journal_file
from tailrace.observe.journal.run_files import RunFiles
from tailrace.observe.time_use.phases import ON_TRAINING_DEVICES, ROLLOUT, TRAIN, Phase, PhaseTimes

MAX_GAP_S, MAX_GAP_SHARE = 1.0, 0.02
"""Longest pause inside one use of the training devices: seconds, and share of a step."""
MIN_WARM_STEPS = 3
"""The first step, which warms up, is left out if the run has this many others."""
OVERLAP_SHARE = 0.5
"""If rollout goes on during more than this share of the training time, it does not wait for training."""


def demand_of_run(path: Path) -> JobDemand:
    """``ValueError`` with a sentence if there is no run, or none that shows a period."""
    files = RunFiles.find(path)
    phases = _follow(files)
    return JobDemand(
        name=files.path.name,
        trace=_trace(phases, path),
        train_devices=1,
        rollout_devices=phases.num_instances,
        run=phases.steps(),
    )


def _follow(files: RunFiles) -> PhaseTimes:
    entries: Iterator[Entry] = (entry for _, entry in journal_file.read(files.journal))
    try:
        return PhaseTimes.of(entries)
    except MISFITS as error:  # a damaged entry is one of them
        raise ValueError(
            f"the journal cannot be followed: {error}; `tailrace doctor {files.path}` says more"
        ) from error


def _trace(phases: PhaseTimes, path: Path) -> DemandTrace:
    first = 2 if phases.num_steps > MIN_WARM_STEPS else 1
    whole = range(first, phases.num_steps + 1)
    uses = [phase for phase in phases.all() if phase.kind in ON_TRAINING_DEVICES and phase.step in whole]
    step_s = statistics.fmean([step.seconds for step in phases.steps()] or [0.0])
    trace = trace_of(
        [Operation(kind=use.kind, started=use.start, seconds=use.seconds, step=use.step) for use in uses],
        max_gap_s=min(MAX_GAP_S, MAX_GAP_SHARE * step_s),
        slack_s=_slack_s(phases.all(), uses),
    )
    if trace is None:
        found = phases.num_steps
        raise ValueError(f"{path} shows no period: it has {found} optimizer step{'s' * (found != 1)}, and 2 are needed")
    return trace


def _slack_s(phases: Sequence[Phase], uses: Sequence[Phase]) -> float:
    """Seconds by which training can be late. If rollout goes on meanwhile: as long as training then waits for it."""
    training = [use for use in uses if use.kind == TRAIN]
    rollouts = [phase for phase in phases if phase.kind == ROLLOUT]
    total = sum(use.seconds for use in training)
    if not total or _overlap_s(training, rollouts) <= OVERLAP_SHARE * total:
        return 0.0
    gaps = [after.start - before.end for before, after in pairwise(uses) if after.step > before.step]
    return max(statistics.median(gaps), 0.0) if gaps else 0.0


def _overlap_s(phases: Sequence[Phase], others: Sequence[Phase]) -> float:
    """Seconds in which one of each goes on. Both are in order and without overlap among themselves."""
    total, first = 0.0, 0
    for phase in phases:
        while first < len(others) and others[first].end <= phase.start:
            first += 1
        for other in islice(others, first, None):
            if other.start >= phase.end:
                break
            total += min(phase.end, other.end) - max(phase.start, other.start)
    return total
