"""What is known of a run that asks for advice: its work, its costs, and how fast it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from tailrace.core.costs import NOTHING_KNOWN, CostModel
from tailrace.core.events import StepTrained
from tailrace.core.journal import Entry
from tailrace.core.schedule import Schedule
from tailrace.observe.schedules.comparison import figures_of
from tailrace.observe.schedules.schedule_account import ScheduleFigures
from tailrace.sim.calibrate import Calibration, calibrate, recorded_schedule, schedule_of
from tailrace.sim.engine_costs import EngineCosts
from tailrace.sim.fitting.machine_facts import MachineFacts
from tailrace.sim.one_size import has_other_sizes
from tailrace.sim.recorded_work import RecordedWork
from tailrace.sim.world import Sharing, WorldCosts

LEAST_STEPS = 4
"""Fewest optimizer steps from which anything is predicted."""
_MOST_STEPS = 40
_MOST_RESPONSES = 20_000
"""A longer run is looked at up to about this response, so that its simulations take minutes and not hours."""

_EXTREMES = (Sharing(rollout=1.0, training=1.0), Sharing(rollout=2.0, training=2.0))
"""Rollout and training that do not disturb each other at all, and that get half of the devices each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    schedule: Schedule
    """The schedule of the run, with as many steps as are simulated."""
    config: Mapping[str, Any]
    calibration: Calibration
    work: RecordedWork
    recorded: ScheduleFigures
    """Figures of the steps that are simulated."""
    num_recorded: int
    """Optimizer steps of the whole run."""
    num_runs: int = 1
    """Runs to which the costs are fitted."""
    extremes: tuple[WorldCosts, ...] = ()
    """Costs under the extremes of what is assumed about rollout and training at the same time; empty: nothing is."""
    has_other_sizes: bool = False
    """Whether the run could have used parallel sizes that are left out."""

    @classmethod
    def of(
        cls,
        entries: Sequence[Entry],
        config: Mapping[str, Any],
        *,
        others: Sequence[Sequence[Entry]] = (),
        num_steps: int | None = None,
    ) -> Self:
        """``others``: runs with the same model on the same machine, to fit costs and lengths to as well.
        ``num_steps``: most steps to simulate; None: a number that takes minutes."""
        own = schedule_of(entries)
        if not own.trains:
            raise ValueError("the run did not train, so there is no step to predict")
        count = min(most_steps(own) if num_steps is None else num_steps, num_trained(entries))
        if count < LEAST_STEPS:
            raise ValueError(f"{count} optimizer steps are too few to predict from; it takes at least {LEAST_STEPS}")
        journals = [first_steps(journal, count) for journal in (entries, *others)]
        machine = MachineFacts.of(config, num_prompts=own.epoch_size)
        machine = replace(machine, prompt_length=own.coordination.prompt_length or machine.prompt_length)
        calibration = calibrate(journals, machine)
        return cls(
            schedule=_informed(replace(own, max_steps=count), calibration.costs.engine),
            config=config,
            calibration=calibration,
            work=RecordedWork.of(journals),
            recorded=figures_of(journals[0]),
            num_recorded=num_trained(entries),
            num_runs=len(journals),
            extremes=tuple(_extremes(journals, machine, calibration)),
            has_other_sizes=has_other_sizes(recorded_schedule(entries)),
        )

    @property
    def num_steps(self) -> int:
        return self.schedule.max_steps


def _extremes(
    journals: Sequence[Sequence[Entry]], machine: MachineFacts, calibration: Calibration
) -> Iterator[WorldCosts]:
    found = calibration.costs.sharing
    for extreme in () if calibration.saw_overlap else _EXTREMES:
        if calibration.corrected:
            yield calibrate(journals, replace(machine, sharing=extreme)).costs
        else:
            rollout = extreme.rollout if calibration.is_rollout_assumed else found.rollout
            training = extreme.training if calibration.is_training_assumed else found.training
            yield replace(calibration.costs, sharing=Sharing(rollout=rollout, training=training))


def most_steps(schedule: Schedule) -> int:
    """Most steps of a run that are simulated, if nobody says how many."""
    per_step = schedule.batch_size * schedule.group_size
    return max(LEAST_STEPS, min(_MOST_STEPS, _MOST_RESPONSES // per_step))


def num_trained(entries: Sequence[Entry]) -> int:
    return max((int(entry.event.version) for entry in entries if isinstance(entry.event, StepTrained)), default=0)


def first_steps(entries: Sequence[Entry], count: int) -> Sequence[Entry]:
    """Return the entries up to the end of step ``count``; all, if there are fewer steps."""
    ends = (n for n, each in enumerate(entries) if isinstance(each.event, StepTrained) and each.event.version >= count)
    return entries[: next(ends, len(entries)) + 1]


def _informed(schedule: Schedule, engine: EngineCosts) -> Schedule:
    """Return the schedule with the costs of its instances, which real runs measure while they run."""
    if schedule.coordination.costs != NOTHING_KNOWN:
        return schedule
    costs = CostModel(k1=engine.k1, k2=engine.k2, k3=engine.k3, k4=engine.k4, prefill_s=engine.prefill_s)
    return replace(schedule, coordination=replace(schedule.coordination, costs=costs))
