"""Simulated runs that launch more than they train on, with responses of known natural lengths."""

from __future__ import annotations

import math

from sim.worlds import ONE_SECOND_STEPS
from tailrace.core.ids import ResponseId
from tailrace.core.journal import Entry
from tailrace.core.schedule import Leftovers, Schedule
from tailrace.sim.instance import InstanceTimes
from tailrace.sim.lengths import uniform
from tailrace.sim.result import run_schedule
from tailrace.sim.reward_model import RewardCosts, RewardKind
from tailrace.sim.trainer_model import TrainerCosts
from tailrace.sim.world import WorldCosts

NATURAL_MEAN = 347


class Geometric:
    """Natural lengths: each token is the last one with the same probability."""

    def draw(self, response: ResponseId, version: int) -> int:
        return math.ceil(-NATURAL_MEAN * math.log(uniform(*response.group, response.member, response.attempt)))


def speculative_run(leftovers: Leftovers, num_launched: int) -> list[Entry]:
    """Launch so many prompts for a batch of 4, each with as many responses for a group of 4."""
    schedule = Schedule(
        train_source="train",
        batch_size=4,
        group_size=4,
        max_steps=12,
        launch_prompts=num_launched,
        launch_responses=num_launched,
        leftovers=leftovers,
    )
    costs = WorldCosts(
        engine=ONE_SECOND_STEPS,
        instance=InstanceTimes(report_s=1.0),
        trainer=TrainerCosts(fixed_s=1.0, token_s=0.001),
        reward=RewardCosts(seed=0, num_workers=8, kinds=(RewardKind(),)),
        num_prompts=1000,
        prompt_length=10,
        max_response_length=4096,
    )
    entries: list[Entry] = []
    finish, _ = run_schedule(schedule, costs, Geometric(), record=entries.append)
    assert finish.is_complete, finish.reason
    return entries
