"""Settings of parallel sizes: what cannot work is refused, and layouts get their numbers from settings or a profile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace.config.continuation import as_json, differences, fixed
from tailrace.config.load import SettingsError
from tailrace.config.parallel_layouts import rollout_of, settings_by_size, with_profiled_numbers
from tailrace.config.parallel_profile import ParallelProfile, SizeProfile, read_profile, write_profile
from tailrace.config.rules import broken_rules
from tailrace.config.schedule_builder import schedule
from tailrace.config.settings import Settings
from tailrace.core.costs import CostModel
from tailrace.core.schedule import Parallelism, Schedule, SharedPlace

MODEL = "tiny-arith"


def asked(rollout: dict[str, Any], **sections: Any) -> Settings:
    given = {"num_instances": 4, "parallel_sizes": [1, 2, 4], "max_response_length": 100} | rollout
    return Settings.model_validate({"rollout": given, "data": {"max_prompt_length": 28}} | sections)


def scheduled(settings: Settings) -> Schedule:
    return schedule(settings, {"train": 500}, prompt_length=8)


@pytest.mark.parametrize(
    ("rollout", "words"),
    [
        ({"tensor_parallel_size": 3}, "3 is the size with which the run starts, so it must be one of"),
        ({"parallel_sizes": [1, 2, 3]}, "3 is no multiple of 2"),
        ({"num_instances": 1}, "rollout.tensor_parallel_size) has 1 device, which"),
        ({"num_instances": 6}, "have 6 devices, which instances of size 4 do not fill"),
        (
            {"tensor_parallel_size": 4, "kv_tokens": 400},
            "one of size 1 has 100, which cannot hold one longest response",
        ),
        ({"parallel_sizes": [], "parallel_profile": "a.json"}, "parallel_profile is the speed of rollout.parallel"),
        ({"parallel_sizes": [], "park": "never"}, "rollout.park is 'never' for instances of other rollout.parallel_s"),
        ({"from_run": "elsewhere"}, "saved responses (rollout.from_run) need no devices"),
    ],
)
def test_sizes_that_cannot_work_are_refused(rollout: dict[str, Any], words: str) -> None:
    assert words in " ".join(broken_rules(asked(rollout)))


def test_a_horizon_that_nobody_reads_is_refused() -> None:
    [told] = broken_rules(asked({}, schedule={"parallel_horizon": 20}))
    assert "schedule.parallel_horizon is 20 for changes of the parallel size" in told
    assert not broken_rules(asked({}, schedule={"parallel_horizon": 20, "parallelism": "forecast"}))


def test_a_moment_of_lending_that_nobody_reads_is_refused() -> None:
    [told] = broken_rules(asked({}, schedule={"lend_at": 0.3}))
    assert told == "schedule.lend_at is 0.3 but schedule.lending is not 'fixed'; set it, or leave lend_at out"


@pytest.mark.parametrize("given", [[1, 2, 4], "1,2,4", "1, 2, 4"])
def test_sizes_are_a_list_or_a_text(given: object) -> None:
    assert asked({"parallel_sizes": given}).rollout.parallel_sizes == (1, 2, 4)
    assert asked({"parallel_sizes": 1}).rollout.parallel_sizes == (1,)


def test_sizes_that_fill_the_same_devices_are_fine() -> None:
    assert not broken_rules(asked({}))
    assert not broken_rules(asked({"num_instances": 2, "tensor_parallel_size": 2, "parallel_sizes": [2, 1, 4]}))


def test_on_ray_a_parked_process_would_keep_its_gpus() -> None:
    ray = {"runtime": "ray", "ray": {"rollout": {"gpus": 1}}}
    first, second = broken_rules(asked({"park": "always"}, **ray))
    assert "on Ray a process keeps the GPUs that it reserved" in first
    assert "ray.rollout.gpus is 1 for every instance" in second


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"parallelism": "preemptions", "preset": "staleflow"}, "'keep' has no rounds"),
    ],
)
def test_schedules_without_rounds_keep_their_size(section: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        scheduled(asked({}, schedule=section))


def test_layouts_have_numbers_in_proportion_to_their_devices_and_room_for_one_response() -> None:
    made = scheduled(asked({"kv_tokens": 1000, "max_running": 6})).parallelism
    assert [(each.size, each.first, each.count) for each in made.layouts] == [(1, 0, 4), (2, 4, 2), (4, 6, 1)]
    assert [(each.kv_tokens, each.max_running, each.max_in_flight) for each in made.layouts] == [
        (1000, 6, 12), (2000, 12, 24), (4000, 24, 48)
    ]  # fmt: skip
    small = scheduled(asked({"tensor_parallel_size": 4, "num_instances": 1, "max_running": 2})).parallelism
    assert [each.kv_tokens for each in small.layouts] == [128, 128, 128]
    assert [each.max_running for each in small.layouts] == [1, 1, 2]


def test_an_instance_of_a_size_is_started_with_the_numbers_of_its_layout() -> None:
    settings = asked({"kv_tokens": 1000, "max_running": 6})
    of_two = rollout_of(settings.rollout, scheduled(settings).parallelism.layouts[1])
    assert (of_two.tensor_parallel_size, of_two.num_instances, of_two.parallel_sizes) == (2, 2, ())
    assert (of_two.kv_tokens, of_two.max_running) == (2000, 12)
    assert of_two.max_response_length == 100


def profile_of(*sizes: int) -> ParallelProfile:
    return ParallelProfile(
        model=MODEL,
        dtype="float32",
        engine="vllm",
        device="cpu",
        sizes=tuple(
            SizeProfile(
                size=size,
                costs=CostModel(k1=1e-6 / size, k2=0.0, k3=1e-4, k4=1e-3 * size, k5=1.5, prefill_s=1e-5),
                kv_tokens=1000 * size + 7,
                max_running=8 * size,
                start_s=20.0 + size,
                release_s=None if size == 1 else 0.5,
                wake_s=None if size == 1 else 1.0 + size,
            )
            for size in sizes
        ),
    )


def test_a_profile_says_how_fast_and_how_large_each_size_is(tmp_path: Path) -> None:
    written = profile_of(1, 2, 4, 8)
    write_profile(tmp_path / "sizes.json", written)
    assert read_profile(tmp_path / "sizes.json", model=MODEL, dtype="float32", sizes=[1, 2]) == written
    settings = asked({"parallel_profile": tmp_path / "sizes.json", "engine": "vllm"})
    made = scheduled(settings).parallelism
    of_two = rollout_of(settings.rollout, made.layouts[1])
    assert (of_two.costs.k4, of_two.kv_tokens) == (2e-3, 2007)
    assert [(each.kv_tokens, each.max_running) for each in made.layouts] == [(1007, 8), (2007, 16), (4007, 32)]
    assert [each.costs for each in made.layouts] == [each.costs for each in written.sizes[:3]]
    assert (made.start_s, made.wake_s) == (24.0, 5.0), "the longest of the sizes that the run has"


def test_numbers_that_the_user_gives_count_more_than_those_of_the_profile(tmp_path: Path) -> None:
    """For the other sizes too, in proportion."""
    write_profile(tmp_path / "sizes.json", profile_of(1, 2, 4))
    given = {"parallel_profile": tmp_path / "sizes.json", "engine": "vllm", "kv_tokens": 300, "max_running": 4}
    made = scheduled(asked(given)).parallelism
    assert [(each.kv_tokens, each.max_running) for each in made.layouts] == [(300, 4), (600, 8), (1200, 16)]
    assert all(each.is_measured for each in made.layouts)
    only_one = scheduled(asked(given | {"kv_tokens": None})).parallelism
    assert [(each.kv_tokens, each.max_running) for each in only_one.layouts] == [(1007, 4), (2007, 8), (4007, 16)]


def test_the_memory_plan_counts_the_caches_of_the_profile(tmp_path: Path) -> None:
    write_profile(tmp_path / "sizes.json", profile_of(1, 2, 4))
    settings = with_profiled_numbers(asked({"parallel_profile": tmp_path / "sizes.json", "engine": "vllm"}))
    assert (settings.rollout.kv_tokens, settings.rollout.max_running) == (1007, 8)
    planned = [(each.rollout.kv_tokens, each.rollout.max_running) for each in settings_by_size(settings)]
    assert planned == [(1007, 8), (2007, 16), (4007, 32)]
    assert [(each.kv_tokens, each.max_running) for each in scheduled(settings).parallelism.layouts] == planned


def test_without_a_profile_no_size_counts_as_measured() -> None:
    assert not any(each.is_measured for each in scheduled(asked({})).parallelism.layouts)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "other"}, "measured with the model 'other', and this run trains 'tiny-arith'"),
        ({"dtype": "bfloat16"}, "measured in bfloat16"),
        ({"engine": "timed"}, "measured with the engine 'timed', and this run has 'vllm'"),
        ({"device": "NVIDIA H200"}, "measured on NVIDIA H200, and this run computes on another device"),
        ({"sizes": ()}, "size 1 of rollout.parallel_sizes is not in it"),
    ],
)
def test_a_profile_of_something_else_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_profile(tmp_path / "sizes.json", replace(profile_of(1, 2, 4), **change))
    with pytest.raises(SettingsError, match=words):
        scheduled(asked({"parallel_profile": tmp_path / "sizes.json", "engine": "vllm"}, model={"device": "cpu"}))


def test_a_profile_whose_cache_is_too_small_for_this_run_is_refused(tmp_path: Path) -> None:
    write_profile(tmp_path / "sizes.json", profile_of(1, 2, 4))
    longer = {"parallel_profile": tmp_path / "sizes.json", "max_response_length": 1500, "engine": "vllm"}
    with pytest.raises(SettingsError, match="an instance of size 1 had a KV cache of 1007 tokens"):
        scheduled(asked(longer))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read: No such file"),
        ("[1]", "is not a profile"),
        ("{}", "is not a profile"),
        (json.dumps({"format": 2}), "format 2, and this version of tailrace reads 1"),
        (json.dumps({"format": 1, "sizes": [{"size": 1}]}), "is not a profile"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(text: str | None, words: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "sizes.json").write_text(text)
    with pytest.raises(SettingsError, match=words):
        scheduled(asked({"parallel_profile": tmp_path / "sizes.json"}))


def test_with_several_sizes_a_continued_run_keeps_the_one_that_it_started_with() -> None:
    before = asked({"num_instances": 2, "tensor_parallel_size": 2})
    after = asked({"num_instances": 2, "tensor_parallel_size": 1, "park": "never"})
    found = differences(after, as_json(before))
    assert {each.name for each in found} == {"rollout.tensor_parallel_size", "rollout.park"}
    assert [each.name for each in fixed(after, found)] == ["rollout.tensor_parallel_size"]
    one = Settings.model_validate({"rollout": {"tensor_parallel_size": 2}})
    assert not fixed(one, differences(one, as_json(Settings())))


def test_a_continued_run_has_the_places_of_its_new_devices() -> None:
    made = scheduled(asked({}))
    places = (SharedPlace(instances=(4,), replicas=(0,)), SharedPlace(instances=(5,), replicas=(1,)))
    layouts = tuple(
        replace(each, places=places if each.size == 2 else (), kv_tokens=1) for each in made.parallelism.layouts
    )
    other = replace(made, parallelism=replace(made.parallelism, layouts=layouts, parks=True))
    continued = made.continued(other).parallelism
    assert continued.parks
    assert [each.places for each in continued.layouts] == [(), places, ()]
    assert [each.kv_tokens for each in continued.layouts] == [each.kv_tokens for each in made.parallelism.layouts]
    assert replace(made, parallelism=Parallelism()).continued(other).parallelism.layouts == ()
