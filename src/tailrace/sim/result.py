"""Runs one schedule of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from tailrace.core.commands import FinishRun
from tailrace.core.coordinator import Coordinator
from tailrace.core.events import RunStarted
from tailrace.core.journal import Entry
from tailrace.core.schedule import Schedule
from tailrace.observe.schedules.schedule_account import ScheduleAccount, ScheduleFigures
from tailrace.policies.strategies import policies_of
from tailrace.sim.driver import Agenda, Driver
from tailrace.sim.faults import Fault
from tailrace.sim.lengths import Lengths, RampedLengths, TraceLengths
from tailrace.sim.named_schedule import scenario_under, schedule_of
from tailrace.sim.scenario import Scenario
from tailrace.sim.world import World, WorldCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class SimResult:
    scenario: str
    schedule: str
    seed: int
    figures: ScheduleFigures
    num_events: int
    is_complete: bool
    reason: str
    """Why the run ended."""
    num_censored: int = 0
    """Lengths of the trace that reached its cap. Their continuations are drawn at random."""
    num_recorded: int = 0

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def run_schedule(
    schedule: Schedule,
    costs: WorldCosts,
    lengths: Lengths,
    *,
    faults: Sequence[Fault] = (),
    order: Sequence[tuple[int, int]] = (),
    record: Callable[[Entry], None],
) -> tuple[FinishRun, int]:
    """Run a schedule in virtual time. Return the last command, ``FinishRun``, and the number of events."""
    agenda = Agenda()
    coordinator = Coordinator(schedule, policies=policies_of(schedule))
    world = World(schedule, costs, lengths, agenda, live=coordinator.live, faults=faults, order=order)
    driver = Driver(coordinator, world, agenda, record=record)
    return driver.run(RunStarted(schedule=schedule)), driver.num_events


def simulate(scenario: Scenario, name: str, *, record: Callable[[Entry], None] | None = None) -> SimResult:
    """Run the schedule called ``name``. ``record`` is called with every entry of the journal, which is not kept."""
    scenario = scenario_under(scenario, name)
    lengths = scenario.make_lengths()
    account = ScheduleAccount(
        devices_per_instance=scenario.engine.devices_per_instance, training_devices=scenario.trainer.devices
    )

    def note(entry: Entry) -> None:
        account.feed(entry)
        if record is not None:
            record(entry)

    faults = [section.fault() for section in scenario.faults]
    schedule = schedule_of(scenario, name)
    finish, num_events = run_schedule(schedule, scenario.world_costs(), lengths, faults=faults, record=note)
    full = lengths.full if isinstance(lengths, RampedLengths) else lengths
    return SimResult(
        scenario=scenario.name,
        schedule=name,
        seed=scenario.seed,
        figures=account.figures(),
        num_events=num_events,
        is_complete=finish.is_complete,
        reason=finish.reason,
        num_censored=full.num_censored if isinstance(full, TraceLengths) else 0,
        num_recorded=full.num_recorded if isinstance(full, TraceLengths) else 0,
    )
