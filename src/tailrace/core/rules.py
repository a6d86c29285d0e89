"""Two tables: every rule of the core, and the handler of every event. The code is in the rooms.

Rules look at the state, never at the event that led to it. So a first start, a lost instance and a resumed run need no
rules of their own. The coordinator applies all rules until none has anything left to do. Their order therefore affects
only the order of commands. Decisions that must be made in a certain order are one rule.

A rule yields its commands. It also yields None if it changed something that another rule may depend on: then all rules
are applied once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.collection import facts as collection_facts
from tailrace.core.collection.relief import relieve
from tailrace.core.collection.rules import abort_surplus, collect, commit, open_round, request_prompts
from tailrace.core.evaluation import facts as evaluation_facts
from tailrace.core.evaluation.rules import close_evaluation, drop_evaluation, open_evaluation
from tailrace.core.fleet import facts as fleet_facts
from tailrace.core.fleet.lending import lend
from tailrace.core.fleet.planning import plan
from tailrace.core.fleet.resizing import change_layout, fall_back
from tailrace.core.fleet.rules import release_memory, retire_instances, start_instances
from tailrace.core.rewards import facts as rewards_facts
from tailrace.core.rewards.rules import limit_cases, score
from tailrace.core.rooms import Rooms
from tailrace.core.run import facts as run_facts
from tailrace.core.training import facts as training_facts
from tailrace.core.training.rules import advance, start_trainer

Rule = Callable[[Rooms, float], Iterator[do.Command | None]]
Handler = Callable[[Rooms, Any, float], None]

RULES: tuple[Rule, ...] = (
    abort_surplus,
    start_trainer,
    fall_back,
    change_layout,
    start_instances,
    retire_instances,
    drop_evaluation,
    open_evaluation,
    close_evaluation,
    relieve,
    collect,
    lend,
    commit,
    open_round,
    request_prompts,
    advance,
    plan,
    score,
    limit_cases,
    release_memory,
)


def prompts_offered(rooms: Rooms, event: ev.PromptsOffered, now: float) -> None:
    is_training = event.source == rooms.schedule.train_source
    (collection_facts if is_training else evaluation_facts).prompts_offered(rooms, event, now)


def run_resumed(rooms: Rooms, event: ev.RunResumed, now: float) -> None:
    """Reset all open requests, because no earlier command will be answered: the rules then make them again."""
    if event.schedule is not None:
        if event.schedule.case_time.slow_s < rooms.schedule.case_time.slow_s:
            rooms.rewards.forget_case_times()
        rooms.schedule = event.schedule
    for facts in (fleet_facts, rewards_facts, evaluation_facts, collection_facts, training_facts, run_facts):
        facts.run_resumed(rooms, event, now)


HANDLERS: dict[type[ev.Event], Handler] = {
    ev.RunStarted: run_facts.run_started,
    ev.RunResumed: run_resumed,
    ev.StopRequested: run_facts.stop_requested,
    ev.TimerFired: run_facts.timer_fired,
    ev.PromptsOffered: prompts_offered,
    ev.InstanceAdded: fleet_facts.instance_added,
    ev.InstanceRetired: fleet_facts.instance_retired,
    ev.InstanceStarted: fleet_facts.instance_started,
    ev.InstanceLost: fleet_facts.instance_lost,
    ev.InstanceStopped: fleet_facts.instance_stopped,
    ev.RolloutReported: fleet_facts.rollout_reported,
    ev.ResponsesAborted: fleet_facts.responses_aborted,
    ev.WeightsPulled: fleet_facts.weights_pulled,
    ev.PullFailed: fleet_facts.pull_failed,
    ev.MemoryReleased: fleet_facts.memory_released,
    ev.CostsMeasured: fleet_facts.costs_measured,
    ev.ResponsesScored: rewards_facts.responses_scored,
    ev.TrainerReached: training_facts.trainer_reached,
    ev.GradientsAccumulated: training_facts.gradients_accumulated,
    ev.StepTrained: training_facts.step_trained,
    ev.TrainerLost: training_facts.trainer_lost,
    ev.TrainingFailed: training_facts.training_failed,
    ev.WeightsPublished: training_facts.weights_published,
    ev.CheckpointSaved: training_facts.checkpoint_saved,
    ev.CheckpointFailed: training_facts.checkpoint_failed,
    ev.CheckpointSkipped: training_facts.checkpoint_skipped,
}
