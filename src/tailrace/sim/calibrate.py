"""Fit the cost model to journals of real runs, and say how far off it is.

The engine's costs are fitted by ``observe/costs/fitting.py``, over samples of some steps each, those of the trainer by
``sim/fitting/trainer.py``, over pieces of optimizer steps. Costs are never negative. The rest are means.

Samples of work that ran alone and of work that ran beside other work on the same devices are kept apart
(``sim/fitting/overlap.py``). The extra time of a process that has just started is warm-up and belongs to neither, nor
do samples of an engine during another process's start.

Messages and decisions take no time in a simulation. The time that is therefore missing from the simulated runs is added
at the end: all steps of engine and trainer are multiplied by one factor.

The error is that of whole optimizer steps: the run is simulated with the fitted costs and the recorded lengths, and
each step's seconds are compared with the real ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tailrace.core.events import RunResumed, RunStarted, StepTrained
from tailrace.core.journal import Entry
from tailrace.core.schedule import Placement, Schedule
from tailrace.observe.shared_fold.run_fold import RunFold
from tailrace.observe.time_use.device_time import DeviceTime
from tailrace.sim.fitting.engine import fit_engines, fit_instance
from tailrace.sim.fitting.machine_facts import MachineFacts
from tailrace.sim.fitting.rewards import fit_rewards
from tailrace.sim.fitting.trainer import fit_trainer
from tailrace.sim.observations import Observations
from tailrace.sim.one_size import of_one_size
from tailrace.sim.recorded_work import RecordedWork
from tailrace.sim.result import run_schedule
from tailrace.sim.world import Sharing, WorldCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    costs: WorldCosts
    engine_error: float
    """Mean absolute percentage error over samples of engine steps."""
    num_samples: int
    num_steps: int
    is_rollout_assumed: bool = False
    """Whether the runs do not tell how much training slows rollout down. Then ``costs.sharing`` is assumed."""
    is_training_assumed: bool = False
    """Whether the runs do not tell how much rollout slows training down."""
    corrected: tuple[str, ...] = ()
    """Names of what (almost) always ran beside the other: its costs follow from the assumed slowdown."""
    stretch: float = 1.0
    """Factor by which the steps of engine and trainer were multiplied at the end."""

    @property
    def saw_overlap(self) -> bool:
        """Whether the runs tell what rollout and training cost each other."""
        return not (self.is_rollout_assumed or self.is_training_assumed)

    @property
    def assumption(self) -> str | None:
        """What the runs do not tell about rollout and training at the same time, in words; None: nothing."""
        if self.corrected:
            who = " and ".join(self.corrected).capitalize()
            return (
                f"{who} (almost) never had the devices alone in this run, so the slowdown by the other is assumed, and"
                " the costs are corrected for it"
            )
        if self.saw_overlap:
            return None
        return (
            "Rollout and training (almost) never ran at the same time in this run, so what they cost each other is"
            " assumed"
        )

    def rests_on_assumption(self, schedule: Schedule) -> bool:
        """Whether a simulation of this schedule uses a slowdown that was assumed."""
        overlaps = schedule.placement is Placement.SHARED and (schedule.overlaps or schedule.streams)
        return bool(self.corrected) or (overlaps and not self.saw_overlap)


def calibrate(journals: Sequence[Sequence[Entry]], machine: MachineFacts) -> Calibration:
    """Fit to one or more journals written on the same machine.

    ``ValueError`` if a run worked with several parallel sizes, or if too little was measured.
    """
    schedules = [schedule_of(journal) for journal in journals]
    fitted = _fit(journals, machine)
    measured = simulated = 0.0
    for journal, schedule in zip(journals, schedules, strict=True):
        steps = step_seconds(journal)
        as_far = replace(schedule, max_steps=len(steps))  # the run may have been stopped early
        again, left_out = predict(journal, fitted, as_far), {0, *interrupted_steps(journal)}
        measured += sum(seconds for number, seconds in enumerate(steps) if number not in left_out)
        simulated += sum(seconds for number, seconds in enumerate(again) if number not in left_out)
    return _stretched(fitted, measured / simulated) if measured and simulated else fitted


def _stretched(fitted: Calibration, factor: float) -> Calibration:
    engine, trainer = fitted.costs.engine, fitted.costs.trainer
    costs = replace(fitted.costs, engine=engine.times(factor), trainer=trainer.times(factor))
    return replace(fitted, costs=costs, stretch=factor)


def _fit(journals: Iterable[Iterable[Entry]], machine: MachineFacts) -> Calibration:
    seen = Observations(
        prompt_length=machine.prompt_length,
        max_running=machine.max_running,
        num_reward_workers=machine.workers,
        prefill_chunk=machine.prefill_chunk,
        length_classes=machine.length_classes,
        num_replicas=machine.num_replicas,
    )
    for journal in journals:
        for entry in journal:
            seen.feed(entry)
    if len(seen.engine) < 5 or not seen.finishes:
        found = f"{len(seen.engine)} samples of engine steps and {len(seen.finishes)} optimizer steps"
        raise ValueError(f"{found} are too few")
    engine, (trainer, pieces) = fit_engines(seen, machine), fit_trainer(seen, machine)
    return Calibration(
        costs=WorldCosts(
            engine=engine.costs,
            instance=fit_instance(seen, engine.costs, machine),
            trainer=trainer,
            reward=fit_rewards(seen, machine),
            sharing=Sharing(rollout=engine.slowdown, training=pieces.slowdown),
            num_prompts=machine.num_prompts,
            prompt_length=machine.prompt_length,
            max_response_length=machine.max_response_length,
        ),
        engine_error=engine.error,
        num_samples=engine.num_samples,
        num_steps=len(seen.finishes),
        is_rollout_assumed=engine.is_assumed,
        is_training_assumed=pieces.is_assumed,
        corrected=("rollout",) * engine.is_corrected + ("training",) * pieces.is_corrected,
    )


def step_seconds(entries: Iterable[Entry]) -> list[float]:
    """Return the seconds of each optimizer step of a run, of which ``figures_of`` gives the mean.

    The time in which processes were gone or started is part of no step.
    """
    run = RunFold()
    time, ends = DeviceTime(run), [0.0]
    for entry in entries:
        for news in run.feed(entry):
            time.hear(news)
            if news.step is not None:
                ends.append(time.at_step.elapsed_s)
    return [end - begin for begin, end in pairwise(ends)]


def interrupted_steps(entries: Iterable[Entry]) -> Iterator[int]:
    """Yield the numbers, from 0, of the steps in which the run was interrupted. Some of their work was done twice."""
    number = 0
    for entry in entries:
        if isinstance(entry.event, StepTrained):
            number = entry.event.version
        elif isinstance(entry.event, RunResumed):
            yield number


def predict(entries: Sequence[Entry], calibration: Calibration, schedule: Schedule | None = None) -> list[float]:
    """Return the simulated seconds of each step of this run, or of another schedule on its lengths."""
    return step_seconds(simulate([entries], calibration, schedule or schedule_of(entries))[0])


def simulate(
    journals: Sequence[Sequence[Entry]], calibration: Calibration, schedule: Schedule
) -> tuple[list[Entry], int]:
    """Return the journal of this schedule on the lengths of these runs, and how many lengths were drawn at random.

    Prompts come in the order of the first run. If several runs have a response, its length in the first of them counts.
    """
    work = RecordedWork.of(journals)
    simulated: list[Entry] = []
    lengths = work.lengths(seed=0)
    run_schedule(schedule, calibration.costs, lengths, order=work.order, record=simulated.append)
    return simulated, len(lengths.drawn)


def schedule_of(entries: Sequence[Entry]) -> Schedule:
    """Return the schedule of a run as it is simulated, with one parallel size; ``ValueError`` if it had several."""
    return of_one_size(recorded_schedule(entries), entries)


def recorded_schedule(entries: Sequence[Entry]) -> Schedule:
    first = entries[0].event
    if not isinstance(first, RunStarted):
        raise ValueError(f"a journal begins with RunStarted, not {type(first).__name__}")
    return first.schedule
