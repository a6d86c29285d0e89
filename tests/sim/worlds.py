"""Small simulated worlds, and how to let time pass in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.core import commands as do
from tailrace.core.events import Event
from tailrace.core.ids import GroupId, InstanceId, ResponseId
from tailrace.core.schedule import CaseTime, Placement, Schedule
from tailrace.sim.driver import Agenda
from tailrace.sim.engine_costs import EngineCosts
from tailrace.sim.faults import Fault
from tailrace.sim.instance import InstanceTimes
from tailrace.sim.reward_model import RewardCosts, RewardKind
from tailrace.sim.scenario import Scenario
from tailrace.sim.scenario_file import check
from tailrace.sim.trainer_model import TrainerCosts
from tailrace.sim.world import SizedInstance, World, WorldCosts

ONE_SECOND_STEPS = EngineCosts(k1=0.0, k2=1.0, k3=0.0, k4=0.0, prefill_s=0.0, kv_capacity=10_000)
STEADY = TrainerCosts(fixed_s=10.0, token_s=1.0, num_replicas=2, publish_s=3.0, checkpoint_s=1.0)
FIXED = CaseTime()
I0 = InstanceId(0)


def response(prompt: int, member: int = 0) -> ResponseId:
    return ResponseId(GroupId("train", 0, prompt), member)


@dataclass(frozen=True)
class FixedLengths:
    """Response ``prompt`` has ``lengths[prompt]`` tokens."""

    lengths: tuple[int, ...]

    def draw(self, response: ResponseId, version: int) -> int:
        return self.lengths[response.group.prompt % len(self.lengths)]


class Stage:
    """A world without a coordinator: commands by hand, events into a list."""

    def __init__(
        self,
        *lengths: int,
        budget: int = 100,
        rewards: RewardKind | None = None,
        workers: int = 2,
        costs: RewardCosts | None = None,
        placement: Placement = Placement.DISAGGREGATED,
        faults: Iterable[Fault] = (),
        trainer: TrainerCosts = STEADY,
        case_time: CaseTime = FIXED,
        schedule: Schedule | None = None,
        sizes: Mapping[int, SizedInstance] | None = None,
        **times: float,
    ) -> None:
        self.agenda = Agenda()
        self.heard: list[tuple[float, Event]] = []
        known = schedule or Schedule(
            train_source="train", batch_size=1, group_size=1, max_steps=1, placement=placement, case_time=case_time
        )
        world_costs = WorldCosts(
            engine=ONE_SECOND_STEPS,
            instance=InstanceTimes(**times),
            trainer=trainer,
            reward=costs or RewardCosts(seed=0, num_workers=workers, kinds=(rewards or RewardKind(),)),
            num_prompts=5,
            prompt_length=10,
            max_response_length=budget,
            sizes=sizes or {},
        )
        chosen = FixedLengths(lengths or (5,))
        self.world = World(known, world_costs, chosen, self.agenda, live=set, faults=faults)

    def do(self, *commands: do.Command) -> Stage:
        for command in commands:
            self.world.perform(command)
        return self

    def pass_time(self, until: float = 1e9) -> Stage:
        """Let everything happen that is due by ``until``."""
        while self.agenda and self.agenda._heap[0][0] <= until:
            what = self.agenda.next()
            if isinstance(what, Event):
                self.heard.append((self.agenda.now, what))
            else:
                what()
        if until < 1e9:
            self.agenda.now = until
        return self

    def events(self, kind: type[Event]) -> list[tuple[float, Any]]:
        return [(at, event) for at, event in self.heard if type(event) is kind]


def submit(*prompts: int, start: int = 0) -> do.Submit:
    dispatches = tuple(do.Dispatch(response=response(prompt), start=start) for prompt in prompts)
    return do.Submit(instance=I0, dispatches=dispatches)


def small_scenario(**changes: Any) -> Scenario:
    """A few prompts on two instances; ``changes`` are ``section__key=value``."""
    data: dict[str, Any] = {
        "name": "small",
        "source": "a test",
        "schedule": {"source": "a test", "num_steps": 4, "rollout_batch_size": 6, "n_samples_per_prompt": 4},
        "engine": {
            "source": "a test",
            "num_instances": 2,
            "k1": 1e-6,
            "k2": 1e-2,
            "k3": 1e-3,
            "k4": 1e-3,
            "prefill_s": 1e-4,
            "kv_capacity": 5000,
            "prompt_length": 20,
            "pull_s": 0.5,
        },
        "trainer": {"source": "a test", "fixed_s": 1.0, "token_s": 1e-3},
        "reward": {"source": "a test", "num_workers": 3, "kinds": [{"median_s": 0.1, "spread": 0.5}]},
        "lengths": {"source": "a test", "max_response_length": 500, "median": 80, "between": 0.7, "within": 0.5},
    }
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            data[section][key] = value
        else:
            data[section] = value
    return check(data, Path("small.toml"))


def parted_scenario(**changes: Any) -> Scenario:
    """A small scenario whose prompts are scored by functions, test cases and judges; ``changes`` are
    ``tests__key=value``, ``judge__key=value`` or as in ``small_scenario``."""
    tests: dict[str, Any] = {
        "source": "a test", "workers": 40, "case_timeout_s": 30.0, "num_cases": 4, "median_s": 0.5, "between": 0.7,
        "across": 0.3, "within": 0.15, "endless_share": 0.2,
    }  # fmt: skip
    judge: dict[str, Any] = {"source": "a test", "workers": 2, "devices": 1, "pass_s": 0.2, "token_s": 1e-3}
    reward = {"source": "a test", "num_workers": 3, "kinds": [{"median_s": 0.1}], "code_tests": tests, "judge": judge}
    rest = {}
    for name, value in changes.items():
        section, _, key = name.partition("__")
        own = {"tests": tests, "judge": judge, "reward": reward}.get(section)
        if own is None or not key:
            rest[name] = value
        else:
            own[key] = value
    return small_scenario(reward=reward, **rest)
