"""The memory of a judge: what is estimated beside what torch allocates, and what it leaves to others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from judge.judge_models import random_model
from tailrace.commands.preflight.dry_run import dry_run, dry_run_on
from tailrace.commands.preflight.planned import shape_of
from tailrace.config.load import SettingsError, check, load
from tailrace.config.settings import Settings
from tailrace.judge import readings, token_tiles
from tailrace.judge.model import JudgeModel
from tailrace.offload.turns import NUM_BUFFERS
from tailrace.runtime.gpus import card_defaults
from tailrace.sizing import judge_memory
from tailrace.sizing.card import Card, parse_card
from tailrace.sizing.fitting import RESERVE, fit
from tailrace.sizing.judge_memory import JudgeLoad, estimated_profile, judge_load
from tailrace.sizing.memory_plan import plan
from tailrace.sizing.model_shape import ModelShape
from tailrace.sizing.offload_profile_file import Measured, write_profile
from tailrace.sizing.resident_layers import LengthPoint

GIB = 2**30
POLICY, JUDGE = shape_of("Qwen/Qwen2.5-1.5B"), shape_of("Qwen/Qwen2.5-7B")
PROCESS = GIB // 2


def settings(*, judge: dict[str, Any] | None = None, **sections: Any) -> Settings:
    given = {"model": "Qwen/Qwen2.5-7B", "max_pass_tokens": 8192, **(judge or {})}
    reward = {"functions": ["judge"], "judge": given}
    model = {"path": "Qwen/Qwen2.5-1.5B", "device": "cuda", "dtype": "bfloat16"}
    trainer = {"gradient_checkpointing": True} | sections.pop("trainer", {})
    return check({"model": model, "reward": reward, "trainer": trainer, **sections})


def peak_bytes(model: JudgeModel, length: int) -> int:
    """Most bytes that torch allocates on the CPU while a sequence of this length goes through the layers."""
    tokens = torch.from_numpy(np.arange(length) % model.vocab_size)
    model.decoder.states([tokens])
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        model.decoder.states([tokens])
    assert found.profiler is not None
    assert found.profiler.kineto_results is not None
    events = [each for each in found.profiler.kineto_results.events() if each.name() == "[memory]"]
    total = most = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        total += event.nbytes()
        most = max(most, total)
    return most


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("inner", "length"), [(48, 640), (1600, 640), (1600, 96)])
def test_the_estimate_is_what_torch_allocates(
    kind: str, inner: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a narrow MLP attention is the worst moment, with a wide one the MLP."""
    torch.set_num_threads(1)
    monkeypatch.setattr(token_tiles, "TILE", 128)
    monkeypatch.setattr(judge_memory, "TILE", 128)
    monkeypatch.setattr(judge_memory, "WEIGHTS_PER_PART", 1)  # nothing is read here
    sizes = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
    model = random_model(kind, intermediate_size=inner, num_hidden_layers=2, **sizes)
    estimated = estimated_profile(ModelShape.of(model.config.to_dict()), 4, has_reward_head=False)
    judge = JudgeModel(model, torch.device("cpu"))
    needed = estimated.working_bytes(length) + length * estimated.held_bytes
    assert peak_bytes(judge, length) == pytest.approx(needed, rel=0.03)
    assert judge.offload.layer_bytes == pytest.approx(estimated.layer_bytes, rel=0.05)
    assert estimated.held_bytes == judge.decoder.held_bytes


def test_the_estimate_is_what_was_measured_on_a_gpu() -> None:
    """Where reading the answer is the worst moment (``benchmarks/results/judge_offload_h200.json``)."""
    stored = json.loads((Path(__file__).parents[2] / "benchmarks/results/judge_offload_h200.json").read_text())
    for name, shape in (("1.5B", POLICY), ("7B", JUDGE)):
        found, measured = estimated_profile(shape, 2, has_reward_head=False), stored["shapes"][name]
        first = measured["profile"][0]
        held = first["length"] * found.held_bytes
        assert found.working_bytes(first["length"]) == pytest.approx(first["working_bytes"] + held, rel=0.01)
        assert found.layer_bytes == pytest.approx(measured["layer_bytes"], rel=0.001)
        assert found.outside_bytes == pytest.approx(measured["outside_bytes"], rel=0.001)


def test_the_arithmetic_has_the_numbers_of_the_judge() -> None:
    assert judge_memory.TILE == token_tiles.TILE
    assert judge_memory.WEIGHTS_PER_PART == readings.WEIGHTS_PER_PART


def test_between_two_lengths_the_estimate_is_exact() -> None:
    for shape in (POLICY, JUDGE, shape_of("Qwen/Qwen3-0.6B"), shape_of("Qwen/Qwen3-32B")):
        found = estimated_profile(shape, 2, has_reward_head=False)
        for length in (1, 500, 2047, 2048, 2049, 5000, 12_345, 32_768, 200_000):
            expected = judge_memory._working_bytes(shape, 2, length, False)
            assert found.working_bytes(length) == pytest.approx(expected, rel=1e-4)


def load_of(given: Settings, shape: ModelShape = JUDGE) -> JudgeLoad:
    return judge_load(given, shape)


def test_a_judge_needs_weights_and_a_pass_of_the_longest_texts() -> None:
    given = settings(rollout={"max_response_length": 4000}, data={"max_prompt_length": 500})
    load = load_of(given)
    template = len(given.reward.judge.prompt)
    assert (load.longest, load.pass_tokens, load.is_estimated) == (4500 + template, 8192, True)
    # Held by every token of a pass: a state of 3,584 numbers and two rotations of 128. While one text is computed:
    # its normed state, what attention found, queries and their projection, keys and values.
    a_pass = 8192 * 2 * (3584 + 2 * 128) + load.longest * 2 * (4 * 3584 + 2 * 512)
    in_mlp = 8192 * 2 * (3584 + 2 * 128) + 2 * (load.longest * 3 * 3584 + 2048 * 3 * 18944)
    assert load.device_bytes - 2 * JUDGE.num_parameters == pytest.approx(max(a_pass, in_mlp), rel=0.001)


def test_a_reward_head_reads_no_vocabulary() -> None:
    words, head = load_of(settings()), load_of(settings(judge={"answers": {}}))
    assert words.profile.outside_bytes == 2 * head.profile.outside_bytes
    assert head.profile.working_bytes(1) < words.profile.working_bytes(1)


def test_a_judge_beside_rollout_keeps_its_memory_while_training_works() -> None:
    for placement, others in (("shared", 1), ("colocated", 1), ("disaggregated", 2)):
        given = settings(schedule={"placement": placement}, rollout={"max_running": 8, "kv_tokens": 800_000})
        alone = plan(POLICY, given, is_cuda=True, num_devices=others)
        memory = plan(POLICY, given, is_cuda=True, num_devices=others, judge=load_of(given))
        assert memory.judge is not None
        assert memory.judge.num_bytes == PROCESS + load_of(given).device_bytes
        if placement == "disaggregated":
            beside = memory.judge.num_bytes + memory.rollout.num_bytes
            assert memory.num_bytes == max(beside, memory.training.num_bytes) == beside
        else:
            assert memory.num_bytes == alone.num_bytes + memory.judge.num_bytes


def test_on_a_gpu_short_texts_are_computed_side_by_side_unless_that_is_not_wanted() -> None:
    given = settings(rollout={"max_response_length": 512})
    on_gpu, on_cpu = (judge_load(given, JUDGE, is_cuda=is_cuda) for is_cuda in (True, False))
    working = on_gpu.profile.working_bytes
    assert on_gpu.all_bytes - on_cpu.all_bytes == working(8192) - working(on_cpu.longest)
    alone = judge_load(
        settings(judge={"deterministic": True}, rollout={"max_response_length": 512}), JUDGE, is_cuda=True
    )
    assert alone.all_bytes == on_cpu.all_bytes


def test_a_judge_on_a_gpu_of_its_own_takes_nothing_of_the_others() -> None:
    given = settings(judge={"placement": "own"}, rollout={"max_running": 8, "kv_tokens": 20_000, "num_instances": 2})
    alone = plan(POLICY, settings(rollout=given.rollout.model_dump()), is_cuda=True, num_devices=1)
    memory = plan(POLICY, given, is_cuda=True, num_devices=2, judge=load_of(given))
    assert memory.judge is not None
    assert memory.num_bytes == max(alone.num_bytes, memory.judge.num_bytes)
    assert fit(80 * GIB, POLICY, settings(judge={"placement": "own"}), judge=load_of(given)) == fit(
        80 * GIB, POLICY, settings(judge={"model": "a-judge", "url": "http://127.0.0.1:1/v1"})
    )


def test_several_judges_are_counted_on_the_fullest_device() -> None:
    given = settings(judge={"workers": 3}, rollout={"num_instances": 2})
    load = load_of(given)
    counts = [plan(POLICY, given, is_cuda=True, num_devices=number, judge=load).judge for number in (1, 2)]
    assert [each.count for each in counts if each is not None] == [3, 2]
    on_cpu = plan(POLICY, given, is_cuda=False, judge=load)
    assert on_cpu.judge is not None
    assert on_cpu.num_bytes - plan(POLICY, given, is_cuda=False).num_bytes == 3 * on_cpu.judge.num_bytes


def test_a_budget_bounds_the_device_and_fills_main_memory() -> None:
    given = settings(judge={"memory_gb": 6.0})
    load = load_of(given)
    memory = plan(POLICY, given, is_cuda=True, judge=load)
    assert memory.judge is not None
    assert memory.judge.num_bytes == PROCESS + 6 * GIB
    [host] = memory.hosts
    [layers] = [part.num_bytes for part in host.parts if part.name == "offloaded layers"]
    assert layers == 28 * load.profile.layer_bytes
    assert [part.num_bytes for part in host.parts if part.name == "processes"] == [3 * PROCESS]
    ample = settings(judge={"memory_gb": 60.0})
    everything = plan(POLICY, ample, is_cuda=True, judge=load_of(ample)).judge
    assert everything is not None
    assert everything.num_bytes == PROCESS + load.all_bytes, "layers that fit stay on the device"


def test_on_a_cpu_all_layers_are_in_main_memory_once_whatever_the_budget() -> None:
    given = settings(judge={"memory_gb": 1.0})
    memory = plan(POLICY, given, is_cuda=False, judge=load_of(given))
    assert memory.judge is not None
    weights = next(part.num_bytes for part in memory.judge.parts if part.name == "weights")
    assert weights == pytest.approx(2 * JUDGE.num_parameters, rel=0.001)
    assert memory.hosts == ()


@pytest.mark.parametrize("placement", ["shared", "colocated", "disaggregated"])
def test_the_kv_cache_is_fitted_into_what_the_judge_leaves(placement: str) -> None:
    given = settings(schedule={"placement": placement}, rollout={"max_response_length": 8192}, judge={"memory_gb": 12})
    load = load_of(given)
    alone, beside = fit(80 * GIB, POLICY, given), fit(80 * GIB, POLICY, given, judge=load)
    assert beside.kv_tokens < alone.kv_tokens
    memory = plan(POLICY, beside.applied(given), is_cuda=True, judge=load)
    assert memory.num_bytes <= (1 - RESERVE) * 80 * GIB
    too_much = plan(POLICY, alone.applied(given), is_cuda=True, judge=load)
    assert too_much.num_bytes > (1 - RESERVE) * 80 * GIB


def test_a_budget_that_is_too_small_for_the_longest_text_is_refused_with_numbers() -> None:
    load = load_of(settings(judge={"memory_gb": 2.5}, rollout={"max_response_length": 1024}))
    assert load.refusal() == (
        "reward.judge.memory_gb is 2.5, and the judge needs about 3.2 GiB for a text of 1,362 tokens with all of its"
        " layers in main memory (estimated)"
    )
    assert load_of(settings(judge={"memory_gb": 3.5}, rollout={"max_response_length": 1024})).refusal() is None
    assert load_of(settings()).refusal() is None


def test_half_of_the_layers_is_a_budget_that_is_always_enough() -> None:
    load = load_of(settings(judge={"memory_gb": "half"}, rollout={"max_response_length": 1024}))
    layers = load.profile.num_layers - load.profile.num_layers // 2
    assert load.budget_bytes is not None
    assert load.all_bytes - load.budget_bytes == (layers - NUM_BUFFERS) * load.profile.layer_bytes
    assert load.refusal() is None
    assert load.device_bytes == load.budget_bytes
    assert load.host_bytes == load.profile.num_layers * load.profile.layer_bytes
    brought = settings(schedule={"preset": "rollpacker"}, rollout={"max_response_length": 1024})
    assert load_of(brought) == load
    apart = settings(judge={"placement": "own"}, schedule={"preset": "rollpacker"})
    assert load_of(apart).budget_bytes is None


def test_a_measured_profile_is_used_and_one_of_a_cpu_tells_no_memory() -> None:
    estimated = load_of(settings()).profile
    measured = replace(estimated, points=(LengthPoint(length=64, working_bytes=GIB, layer_s=0.1),))
    load = judge_load(settings(), JUDGE, measured)
    assert (load.profile, load.is_estimated) == (measured, False)
    on_cpu = replace(estimated, points=(LengthPoint(length=64, working_bytes=0, layer_s=0.1),))
    load = judge_load(settings(), JUDGE, on_cpu)
    assert (load.profile.points, load.is_estimated) == (estimated.points, True)


def planned_run(card: str, **changes: Any) -> list[str]:
    lines: list[str] = []
    dry_run_on(parse_card(card), settings(**changes), lines.append)
    return lines


def test_a_dry_run_for_a_card_shows_the_judge_and_where_it_computes() -> None:
    text = "\n".join(planned_run("H100", schedule={"placement": "colocated"}))
    assert "devices: training on GPU 0; rollout-0 on GPU 0; judge on GPU 0" in text
    assert "judge                       GiB\n  process                  0.50" in text
    assert "28 layers and what is outside them" in text
    assert "8,192 tokens, the longest text 850, estimated" in text
    assert "at most, because rollout and training take turns beside the judge" in text
    text = "\n".join(planned_run("2xH100", judge={"placement": "own", "memory_gb": 10}))
    assert "judge on GPU 1" in text
    everything = judge_load(settings(judge={"memory_gb": 10}), JUDGE, is_cuda=True).all_bytes
    assert f"reward.judge.memory_gb; all layers resident would take {everything / GIB:.2f} GiB, estimated" in text
    assert "offloaded layers        12.15  page-locked: 1 x 12.15 GiB, all layers of a judge" in text
    assert "GiB on the fullest GPU, of 79.0 GiB (H100)" in text


def test_a_plan_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(SettingsError, match=r"the run needs about [\d.]+ GiB, and 50.0 GiB are available; .*memory_gb"):
        planned_run("50GiB")
    planned_run("50GiB", judge={"memory_gb": 4.0})
    with pytest.raises(SettingsError, match=r"reward.judge.memory_gb is 2, and the judge needs about"):
        planned_run("H100", judge={"memory_gb": 2})
    with pytest.raises(
        SettingsError, match=r"reward.judge.placement 'own'\), 2 together, and there is 1: --card 1xH100"
    ):
        planned_run("H100", judge={"placement": "own"})
    with pytest.raises(SettingsError, match=r"judge: the sizes of model 'some/thing' are not known"):
        planned_run("H100", judge={"model": "some/thing"})


def test_the_card_of_a_run_is_divided_with_the_judge() -> None:
    card = Card(name="a card", total=60 * GIB, free=60 * GIB)
    given = {"model.path": "tiny-arith", "model.device": "cuda", "rollout.max_response_length": "1024"}
    judge = {"reward.functions": '["judge"]', "reward.judge.model": "Qwen/Qwen2.5-14B"}
    lines = [card_defaults.resolve(load(None, each), find=lambda given: card)[1] for each in (given, given | judge)]
    used = [float(str(line).rpartition("about ")[2].split()[0]) for line in lines]
    assert used[1] - used[0] > 25


def test_a_dry_run_on_a_cpu_counts_the_judge_too(tmp_path: Path) -> None:
    lines: list[str] = []
    given = {"output_dir": str(tmp_path / "run"), "model.device": "cpu", "reward.judge.model": "tiny-arith"}
    dry_run(load("quickstart", given), lines.append)
    text = "\n".join(lines)
    assert "judge                       GiB" in text
    assert "devices: everything runs on the CPU" in text
    own = judge_load(load("quickstart", given), shape_of("tiny-arith")).profile
    path = tmp_path / "profile.json"
    write_profile(path, own, Measured(model="another", dtype="float32", device="cpu"))
    with pytest.raises(SettingsError, match=r"measured with the model 'another', and the judge is 'tiny-arith'"):
        dry_run(load("quickstart", given | {"reward.judge.profile": str(path)}), lambda line: None)
