"""`rollpacker`: what works is there, what cannot work is left out with a line, and what was asked for is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.commands.preflight.planned import on_a_gpu
from tailrace.config import device_kind, schedule_builder
from tailrace.config.aliases import put
from tailrace.config.load import SettingsError, assemble
from tailrace.config.memory_release import may_lend
from tailrace.config.preset_parts import NAMES
from tailrace.config.presets import PRESETS
from tailrace.config.run_preset import left_out_lines, run_preset
from tailrace.config.settings import Settings
from tailrace.core.outcomes import Part
from tailrace.core.schedule import Leftovers, Schedule, Stream
from tailrace.policies.strategies import ParallelSizes, Scaling, Timeouts

ALL_PARTS = tuple(Part)
WHOLE: dict[str, Any] = {
    "schedule.preset": "rollpacker",
    "model.device": "cuda",
    "rollout.num_instances": 2,
    "rollout.engine": "vllm",
    "rollout.parallel_sizes": [1, 2],
    "trainer.num_ranks": 2,
    "trainer.num_replicas": 2,
    "reward.functions": ["exact_match", "code_tests", "judge"],
    "reward.judge.model": "tiny-arith",
}
"""Settings with which every part can work."""

STREAMED, LENT, SIZES, LIMITS, JUDGE = (
    "streamed steps",
    "lent instances",
    "changes of the parallel size",
    "adaptive limits of test cases",
    "layers of a judge in host memory",
)


def settings(**changes: Any) -> Settings:
    tree: dict[str, Any] = {}
    for name, value in (WHOLE | {name.replace("__", "."): value for name, value in changes.items()}).items():
        put(tree, name, value)
    return assemble(tree, {}, hint=lambda line: None)


def scheduled(given: Settings) -> Schedule:
    return schedule_builder.schedule(given, {"train": 500}, prompt_length=8, score_parts=ALL_PARTS)


def without(given: Settings, parts: tuple[Part, ...] = ALL_PARTS) -> dict[str, str]:
    """What is left out, and why."""
    found = {}
    for line in left_out_lines(given, parts):
        whose, _, rest = line.partition(": without ")
        assert whose == given.schedule.preset
        what, _, why = rest.partition(", because ")
        found[what] = why
    return found


def test_with_everything_in_place_everything_works() -> None:
    given = settings()
    assert without(given) == {}
    found = scheduled(given)
    assert (found.launch_prompts, found.launch_responses) == (40, 10)
    assert (found.leftovers, found.max_staleness, found.stream) == (Leftovers.DEFER, 0, Stream.ALWAYS)
    assert (found.lending.strategy, found.parallelism.strategy) == ("kv-peak", "preemptions")
    assert found.is_reward_streamed
    assert found.case_time.strategy == "adaptive"
    assert given.reward.judge.memory_gb == "half"
    assert may_lend(given)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"trainer__num_replicas": 1}, {LENT: "(trainer.num_replicas)"}),
        ({"rollout__num_instances": 1, "rollout__parallel_sizes": [1]},
         {LENT: "(rollout.num_instances)", SIZES: "(rollout.parallel_sizes)"}),
        ({"rollout__parallel_sizes": []}, {SIZES: "one parallel size (rollout.parallel_sizes)"}),
        ({"schedule__placement": "disaggregated"}, {LENT: "devices of their own (schedule.placement)"}),
        ({"schedule__placement": "colocated"}, {}),
        ({"schedule__placement": "colocated", "trainer__num_replicas": 1},
         {STREAMED: "(schedule.placement)", LENT: "(trainer.num_replicas)"}),
        ({"rollout__engine": "native", "rollout__parallel_sizes": [], "rollout__deterministic": True},
         {STREAMED: "(rollout.deterministic)", LENT: "no step is streamed", SIZES: "(rollout.parallel_sizes)"}),
        ({"algorithm__advantage_estimator": "reinforce++"},
         {STREAMED: "(algorithm.advantage_estimator)", LENT: "no step is streamed"}),
        ({"schedule__rounds_ahead": 1, "schedule__max_staleness": 1}, {LENT: "(schedule.rounds_ahead)"}),
        ({"model__device": "cpu"}, {LENT: "on a CPU (rollout.engine)", JUDGE: "(model.device)"}),
        ({"reward__judge__placement": "own"}, {JUDGE: "(reward.judge.placement)"}),
        ({"reward__judge__url": "http://10.0.0.1:8000/v1"}, {JUDGE: "(reward.judge.url)"}),
        ({"schedule__stream": "never"}, {LENT: "no step is streamed"}),
        ({"schedule__lending": "never"}, {}),
        ({"schedule__parallelism": "fixed"}, {}),
        ({"reward__code_tests__timeouts": "fixed"}, {}),
        ({"reward__judge__memory_gb": 20.0}, {}),
        ({"reward__judge__memory_gb": None}, {}),
    ],
)  # fmt: skip
def test_what_cannot_work_is_left_out_with_a_reason_and_the_rest_runs(
    changes: dict[str, Any], expected: dict[str, str]
) -> None:
    given = settings(**changes)
    found = without(given)
    assert found.keys() == expected.keys()
    assert all(found[what].endswith(reason) for what, reason in expected.items()), found
    made = scheduled(given)
    assert (made.launch_prompts, made.leftovers) == (40, Leftovers.DEFER)
    assert (made.lending.strategy == "never") == (LENT in found or changes.get("schedule__lending") == "never")
    assert (made.stream is Stream.NEVER) == (STREAMED in found or changes.get("schedule__stream") == "never")


@pytest.mark.parametrize(("has_driver", "expected"), [(True, set()), (False, {LENT, JUDGE})])
def test_a_device_that_is_found_decides_as_one_that_is_named(
    has_driver: bool, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "nvidiactl"
    if has_driver:
        driver.touch()
    monkeypatch.setattr(device_kind, "DRIVER", driver)
    given = settings(model__device="auto")
    assert without(given).keys() == expected
    assert scheduled(given).lending.strategy == ("kv-peak" if has_driver else "never")
    assert given.reward.judge.memory_gb == ("half" if has_driver else None)


def test_a_plan_for_a_card_takes_the_device_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_kind, "DRIVER", tmp_path / "none")
    given = on_a_gpu(settings(model__device="auto"))
    assert without(given) == {}
    assert given.reward.judge.memory_gb == "half"


def test_without_tests_and_judge_two_lines_say_so() -> None:
    given = settings(reward__functions=["exact_match"], reward__judge__model=None)
    found = without(given, (Part.FUNCTION,))
    assert found == {LIMITS: "no response is scored by code_tests", JUDGE: "no response is scored by a judge"}
    assert given.reward.judge.memory_gb is None
    plain = assemble({"schedule": {"preset": "rollpacker"}}, {}, hint=lambda line: None)
    assert set(without(plain, (Part.FUNCTION,))) == {LENT, SIZES, LIMITS, JUDGE}
    assert run_preset(plain).stream is Stream.ALWAYS


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schedule__stream": "always", "rollout__engine": "native", "rollout__parallel_sizes": [],
          "rollout__deterministic": True}, "rollout.deterministic cannot repeat the sums"),
        ({"schedule__stream": "always", "schedule__placement": "colocated", "trainer__num_replicas": 1},
         "colocated training waits"),
        ({"schedule__stream": "always", "algorithm__advantage_estimator": "reinforce++"}, "whitens advantages"),
        ({"schedule__lending": "kv-peak", "schedule__rounds_ahead": 1, "schedule__max_staleness": 1},
         "lent instances come back with the next version"),
        ({"schedule__lending": "fixed", "schedule__stream": "never"}, "instances are lent so that training can stream"),
        ({"schedule__parallelism": "preemptions", "rollout__parallel_sizes": [1]}, "give at least two parallel sizes"),
        ({"reward__judge__memory_gb": "half", "model__device": "cpu"}, "limits the memory of a GPU"),
    ],
)  # fmt: skip
def test_what_was_asked_for_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        scheduled(settings(**changes))


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if not preset.leaves_out])
def test_other_presets_leave_nothing_out_and_change_no_reward(name: str) -> None:
    one = {"rollout__num_instances": 1, "rollout__parallel_sizes": []}
    given = settings(schedule__preset=name, trainer__num_replicas=1, **one)
    assert without(given, ()) == {}
    assert (given.reward.code_tests.timeouts, given.reward.judge.memory_gb) == ("fixed", None)
    assert run_preset(given) == PRESETS[name]


def test_an_overlap_of_stages_without_streaming_would_be_sync_so_it_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"set schedule.stream to never"):
        assemble({"schedule": {"preset": "stage-overlap"}, "rollout": {"deterministic": True}}, {})


def test_rollpacker_is_tail_batching_and_five_parts() -> None:
    whole, tail = PRESETS["rollpacker"], PRESETS["tail-batching"]
    fields = whole.__dataclass_fields__.keys()
    assert {name for name in fields if getattr(whole, name) != getattr(tail, name)} == {*NAMES, "leaves_out"}
    brought = (whole.stream, whole.lending, whole.parallelism, whole.timeouts, whole.offloads_judge)
    assert brought == (Stream.ALWAYS, Scaling.KV_PEAK, ParallelSizes.PREEMPTIONS, Timeouts.ADAPTIVE, True)


def test_settings_that_are_read_again_stay_as_they_are() -> None:
    given = settings(trainer__num_replicas=1)
    again = assemble(given.model_dump(mode="json"), {}, hint=lambda line: None)
    assert again == given
    assert without(again) == without(given)


def test_a_journal_tells_less_than_settings_so_a_replay_leaves_more_out() -> None:
    recorded = scheduled(settings(schedule__preset="sync"))
    chosen = schedule_builder.ScheduleOverrides(preset="rollpacker")
    preset, left_out = schedule_builder.fitted_preset(recorded, chosen)
    assert [each.name for each in left_out] == ["lending", "timeouts", "offloads_judge"]
    assert "which instances and replicas share their devices" in left_out[0].line("rollpacker")
    assert preset.parallelism is ParallelSizes.PREEMPTIONS, "the journal has two layouts"
    made = schedule_builder.apply_preset(recorded, chosen)
    assert (made.lending.strategy, made.stream, made.case_time.strategy) == ("never", Stream.ALWAYS, "fixed")
