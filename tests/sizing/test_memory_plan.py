"""The memory of a run, the numbers that follow from a card's memory, and where they are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.commands.preflight.dry_run import dry_run
from tailrace.config.load import SettingsError, check, load
from tailrace.config.settings import Settings
from tailrace.engines.native import runner_choice
from tailrace.runtime.gpus import card_defaults
from tailrace.runtime.gpus.found_cards import find_card
from tailrace.runtime.record.run_directory import RunDirectory
from tailrace.sizing import channel_memory, fitting
from tailrace.sizing.card import Card
from tailrace.sizing.fitting import RESERVE, fit, in_flight
from tailrace.sizing.memory_plan import MemoryPlan, plan
from tailrace.sizing.model_shape import ModelShape
from tailrace.weights.slots import control_file

GIB = 2**30
SMOLLM = ModelShape(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64
)
QWEN_7B = ModelShape(
    vocab_size=152064,
    hidden_size=3584,
    intermediate_size=18944,
    num_layers=28,
    num_heads=28,
    num_kv_heads=4,
    head_dim=128,
    has_tied_embeddings=False,
)

QWEN_1_5B = ModelShape(
    vocab_size=151936,
    hidden_size=1536,
    intermediate_size=8960,
    num_layers=28,
    num_heads=12,
    num_kv_heads=2,
    head_dim=128,
)


def settings(**sections: Any) -> Settings:
    model = {"device": "cuda", "dtype": "bfloat16"} | sections.pop("model", {})
    rollout = {"max_response_length": 1024} | sections.pop("rollout", {})
    return check({"model": model, "rollout": rollout, **sections})


def part(memory: MemoryPlan, process: str, name: str) -> int:
    return next(part.num_bytes for part in getattr(memory, process).parts if part.name == name)


@pytest.mark.parametrize("num_ranks", [2, 8, 64])
@pytest.mark.parametrize("lora_rank", [0, 8])
@pytest.mark.parametrize("shape", [SMOLLM, QWEN_1_5B, QWEN_7B])
def test_a_rank_needs_less_when_it_starts_than_when_it_trains(
    shape: ModelShape, lora_rank: int, num_ranks: int
) -> None:
    """It starts with its part of the weights, and one layer or the embeddings whole, in fp32."""
    asked = settings(model={"lora_rank": lora_rank}, trainer={"num_ranks": num_ranks})
    embeddings = shape.num_parameters - shape.num_layers * shape.layer_parameters
    memory = plan(shape, asked, is_cuda=True, num_devices=num_ranks)
    context = part(memory, "training", "process")
    at_start = part(memory, "training", "weights") + 4 * max(shape.layer_parameters, embeddings)
    assert context + at_start <= memory.training.num_bytes


def test_a_rollout_that_gave_its_memory_back_keeps_its_graphs() -> None:
    asked = settings(rollout={"top_p": 0.9, "max_running": 1024}, schedule={"placement": "colocated"})
    memory = plan(QWEN_1_5B, asked, is_cuda=True)
    kept = part(memory, "rollout", "process") + part(memory, "rollout", "graphs")
    assert memory.rollout.released_bytes == kept
    assert memory.num_bytes >= memory.training.num_bytes + kept
    assert plan(QWEN_1_5B, asked, is_cuda=False).rollout.released_bytes == part(memory, "rollout", "process")


def test_parameters_are_those_of_the_published_models() -> None:
    assert SMOLLM.num_parameters == 134_515_008
    assert QWEN_7B.num_parameters == pytest.approx(7_615_616_512, rel=1e-4)  # with its biases


def test_a_shape_is_read_from_the_config_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 64}))
    with pytest.raises(ValueError, match="it lacks 'num_attention_heads'"):
        ModelShape.read(tmp_path)


MIXTURE = {
    "model_type": "qwen3_moe",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "tie_word_embeddings": False,
}


def test_all_experts_take_memory_and_the_chosen_ones_compute() -> None:
    """Qwen3-30B-A3B."""
    shape = ModelShape.of(MIXTURE)
    assert shape.num_parameters == pytest.approx(30_532_122_624, rel=1e-5)
    assert shape.matmul_parameters == pytest.approx(3.35e9 - 151936 * 2048, rel=0.01)
    assert part(plan(shape, settings(), is_cuda=True), "rollout", "weights") == 2 * shape.num_parameters
    assert shape.mlp_width == 8 * 768
    some_dense = ModelShape.of(MIXTURE | {"decoder_sparse_step": 2, "mlp_only_layers": [1]})
    assert some_dense.num_sparse_layers == 23


def test_the_sizes_of_other_mixtures_are_not_guessed(tmp_path: Path) -> None:
    config = MIXTURE | {"model_type": "mixtral"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="known for 'qwen3_moe', not for 'mixtral'"):
        ModelShape.read(tmp_path)


def test_the_parts_of_a_run_by_hand() -> None:
    given = settings(rollout={"max_running": 512, "kv_tokens": 600_000}, trainer={"max_tokens_per_gpu": 16384})
    memory = plan(SMOLLM, given, is_cuda=True)
    assert part(memory, "rollout", "weights") == 2 * 134_515_008
    assert part(memory, "rollout", "KV cache") == 2 * 30 * 3 * 64 * 2 * 600_000
    assert part(memory, "training", "weights") == 4 * 134_515_008
    assert part(memory, "training", "AdamW") == 8 * 134_515_008
    # 30 layers of: norms 16 D, inputs of linear layers 10 D, MLP 8 I, attention and its output 6 Q and 4 K, row sums 4
    # for each head
    layers = 16384 * 30 * (26 * 576 + 8 * 1536 + 6 * 576 + 4 * 192 + 4 * 9)
    assert part(memory, "training", "micro-batch") == pytest.approx(layers + GIB, rel=0.03)
    assert memory.num_bytes == memory.rollout.num_bytes + memory.training.num_bytes


def test_compiled_layers_keep_less() -> None:
    given = {"max_tokens_per_gpu": 16384, "torch_compile": True}
    memory = plan(SMOLLM, settings(trainer=given), is_cuda=True)
    # 30 layers of: norms 8 D and 8, an input of linear layers 2 D, MLP 6 I, attention as above
    layers = 16384 * 30 * (10 * 576 + 8 + 6 * 1536 + 6 * 576 + 4 * 192 + 4 * 9)
    assert part(memory, "training", "micro-batch") == pytest.approx(layers + GIB, rel=0.03)


def test_recomputing_activations_takes_a_fraction_of_their_memory() -> None:
    plain, recomputed = (
        part(
            plan(QWEN_7B, settings(trainer={"gradient_checkpointing": value}), is_cuda=True), "training", "micro-batch"
        )
        for value in (False, True)
    )
    assert recomputed < plain / 4


def test_ranks_divide_what_they_share_and_gather_two_layers_at_a_time() -> None:
    one, eight = (plan(QWEN_7B, settings(trainer={"num_ranks": ranks}), is_cuda=True) for ranks in (1, 8))
    for name in ("weights", "AdamW"):
        assert part(eight, "training", name) == pytest.approx(part(one, "training", name) / 8, rel=1e-6)
    whole = 2 * QWEN_7B.embedding_parameters + 2 * QWEN_7B.layer_parameters
    assert part(eight, "training", "gathered weights") == pytest.approx(2 * 2 * whole, rel=0.01)
    assert part(eight, "training", "micro-batch") == part(one, "training", "micro-batch")
    assert eight.training.num_bytes < 0.6 * one.training.num_bytes
    on_cpu = [plan(SMOLLM, settings(trainer={"num_ranks": ranks}), is_cuda=False) for ranks in (1, 2)]
    assert on_cpu[1].training.count == 2
    replicated = plan(QWEN_7B, settings(trainer={"num_ranks": 8, "num_replicas": 2}), is_cuda=True)
    assert part(replicated, "training", "weights") == 2 * part(eight, "training", "weights")


def test_ranks_of_a_tensor_group_divide_activations_too() -> None:
    given = {"num_ranks": 4, "max_tokens_per_gpu": 8192}
    sharded, halves = (
        plan(QWEN_7B, settings(trainer=given | {"tensor_parallel_size": size}), is_cuda=True) for size in (1, 2)
    )
    for name in ("weights", "AdamW"):
        assert part(halves, "training", name) == part(sharded, "training", name)
    embeddings = 2 * QWEN_7B.embedding_parameters
    assert part(halves, "training", "gathered weights") == pytest.approx(
        2 * 2 * (embeddings + QWEN_7B.layer_parameters), rel=0.01
    )
    # 28 layers of: norms 16 D and inputs of linear layers 10 D on both; MLP, attention and its output by halves
    layers = 8192 * 28 * (26 * 3584 + (8 * 18944 + 10 * 3584 + 4 * 28) // 2)
    logits = 4 * 2**28  # as many as exist at the same time, and their gradient
    assert part(halves, "training", "micro-batch") == pytest.approx(layers + logits, rel=0.03)
    assert part(halves, "training", "micro-batch") < 0.75 * part(sharded, "training", "micro-batch")


def test_the_state_of_an_optimizer_on_the_host_takes_no_memory_of_the_device() -> None:
    asked = {"trainer": {"optimizer_device": "cpu"}}
    on_device, on_host = (plan(QWEN_7B, settings(**given), is_cuda=True) for given in ({}, asked))
    saved = on_device.training.num_bytes - on_host.training.num_bytes
    assert saved == part(on_device, "training", "AdamW") == 8 * QWEN_7B.num_parameters
    assert part(on_host, "training", "AdamW") == 0
    [shown] = [each.how for each in on_host.training.parts if each.name == "AdamW"]
    assert shown.startswith(f"{saved / GIB:.2f} GiB in the memory of the host")
    # On a CPU the memory that is planned is the host's own.
    on_cpu = plan(QWEN_7B, settings(**asked), is_cuda=False)
    assert part(on_cpu, "training", "AdamW") == 8 * QWEN_7B.num_parameters


def planned(*, is_cuda: bool = True, **sections: Any) -> MemoryPlan:
    return plan(QWEN_7B, settings(**sections), is_cuda=is_cuda, num_devices=8)


def test_gradients_that_wait_on_the_host_are_on_the_device_while_a_piece_is_computed() -> None:
    asked = {"trainer": {"gradients_device": "cpu"}}
    on_device, on_host = planned(), planned(**asked)
    gradients = 4 * QWEN_7B.num_parameters
    assert part(on_host, "training", "gradients") == part(on_device, "training", "gradients") == gradients
    assert on_host.training.num_bytes == on_device.training.num_bytes
    [shown] = [each.how for each in on_host.training.parts if each.name == "gradients"]
    assert shown.endswith(f"between two pieces {gradients / GIB:.2f} GiB in the memory of the host")
    # On a CPU they are copied to other buffers of the same memory.
    on_cpu, waiting = planned(is_cuda=False), planned(is_cuda=False, **asked)
    assert waiting.training.num_bytes - on_cpu.training.num_bytes == gradients
    assert part(waiting, "training", "waiting gradients") == gradients


def test_gradients_wait_beside_a_colocated_rollout_only_if_its_instances_are_lent() -> None:
    """A lent instance comes back to its device before the step if all others are lost."""
    replicas = {"num_ranks": 2, "num_replicas": 2}
    lending = {"placement": "colocated", "stream": "always", "lending": "fixed"}

    def of(schedule: dict[str, Any], **trainer: Any) -> MemoryPlan:
        return planned(schedule=schedule, rollout={"num_instances": 2}, trainer=replicas | trainer)

    taking_turns, lent, on_host = of({"placement": "colocated"}), of(lending), of(lending, gradients_device="cpu")
    gradients = 4 * QWEN_7B.num_parameters  # a replica has one rank, which holds the whole model
    assert part(lent, "training", "gradients") == gradients
    assert lent.training.resting_bytes - taking_turns.training.resting_bytes == gradients
    assert on_host.training.resting_bytes == taking_turns.training.resting_bytes
    assert lent.training.num_bytes == on_host.training.num_bytes == taking_turns.training.num_bytes
    with_shared = lending | {"placement": "shared"}
    assert of(with_shared).num_bytes == of({"placement": "shared"}).num_bytes, "a piece is computed beside rollout"


def test_a_reference_on_the_host_has_embeddings_and_two_layers_on_the_device() -> None:
    def of(*, is_cuda: bool = True, **trainer: Any) -> MemoryPlan:
        return planned(is_cuda=is_cuda, algorithm={"kl_loss_coef": 0.1}, trainer=trainer)

    layer = 2 * 3584 * (3584 + 512) + 3 * 3584 * 18944 + 2 * 3584  # q and o, k and v, the MLP, two norms
    outside = 2 * 152064 * 3584 + 3584
    on_device, on_host = of(), of(reference_device="cpu")
    assert part(on_device, "training", "reference") == 4 * (outside + 28 * layer) == 4 * QWEN_7B.num_parameters
    assert part(on_host, "training", "reference") == 4 * (outside + 2 * layer)
    assert on_device.training.num_bytes - on_host.training.num_bytes == 4 * 26 * layer
    assert on_device.training.resting_bytes - on_host.training.resting_bytes == 4 * 26 * layer
    # Ranks divide a reference on their devices. On the host each has all of it.
    assert part(of(num_ranks=8), "training", "reference") == 4 * QWEN_7B.num_parameters // 8
    whole = of(num_ranks=8, reference_device="cpu")
    assert part(whole, "training", "reference") == 4 * (outside + 2 * layer)
    on_cpu = of(num_ranks=8, reference_device="cpu", is_cuda=False)
    assert part(on_cpu, "training", "reference") == 4 * QWEN_7B.num_parameters
    adapted = {"algorithm": {"kl_loss_coef": 0.1}, "model": {"lora_rank": 8}}
    assert not any(each.name == "reference" for each in planned(**adapted).training.parts)


def test_reference_critic_and_adapter_are_counted() -> None:
    count = SMOLLM.num_parameters
    with_reference = plan(SMOLLM, settings(algorithm={"kl_loss_coef": 0.1}), is_cuda=True)
    assert part(with_reference, "training", "reference") == 4 * count
    with_critic = plan(SMOLLM, settings(algorithm={"advantage_estimator": "gae"}), is_cuda=True)
    assert part(with_critic, "training", "AdamW") == 16 * count
    adapted = plan(SMOLLM, settings(model={"lora_rank": 16}), is_cuda=True)
    assert part(adapted, "training", "AdamW") < 0.1 * part(with_critic, "training", "AdamW")


@pytest.mark.parametrize("placement", ["shared", "colocated", "disaggregated"])
@pytest.mark.parametrize("memory_gib", [24, 80, 140])
@pytest.mark.parametrize("shape", [SMOLLM, QWEN_1_5B, QWEN_7B])
def test_what_is_fitted_fits_or_is_as_small_as_it_can_be(shape: ModelShape, memory_gib: int, placement: str) -> None:
    given = settings(schedule={"placement": placement}, trainer={"gradient_checkpointing": True})
    found = fit(memory_gib * GIB, shape, given)
    longest = 256 + 1024
    needed, budget = plan(shape, found.applied(given), is_cuda=True), (1 - RESERVE) * memory_gib * GIB
    # While a colocated trainer works there is no KV cache that could be smaller, nor on another GPU.
    is_without_cache = placement != "shared" and needed.training.num_bytes > budget
    is_small_cache = found.kv_tokens < longest + 32 or is_without_cache
    assert needed.num_bytes <= budget or (found.max_tokens_per_gpu == 1024 and is_small_cache)
    assert longest <= found.kv_tokens <= in_flight(given) * (longest + 16)
    assert 1 <= found.max_running <= in_flight(given) == 256


def test_a_small_model_on_a_large_card_gets_all_it_can_use_and_no_more() -> None:
    found = fit(140 * GIB, SMOLLM, settings())
    assert (found.max_running, found.kv_tokens, found.max_tokens_per_gpu) == (256, 256 * 1296, 32768)


def test_a_run_that_takes_turns_gets_larger_micro_batches() -> None:
    shared, colocated = (
        fit(80 * GIB, QWEN_1_5B, settings(schedule={"placement": placement})) for placement in ("shared", "colocated")
    )
    assert 1024 < shared.max_tokens_per_gpu < colocated.max_tokens_per_gpu < 32768


def test_rollout_and_training_on_gpus_of_their_own_each_have_a_whole_one() -> None:
    given = settings(schedule={"placement": "disaggregated"}, rollout={"num_instances": 4})
    memory = plan(QWEN_1_5B, given, is_cuda=True)
    assert memory.num_bytes == max(memory.rollout.num_bytes, memory.training.num_bytes)
    together = plan(QWEN_1_5B, settings(rollout={"num_instances": 4}), is_cuda=True)
    assert together.num_bytes > 4 * memory.rollout.num_bytes + memory.training.num_bytes
    assert part(together, "training", "published versions") > 0
    assert not any(part.name == "published versions" for part in memory.training.parts), "they go through the host"
    on_cpu = plan(QWEN_1_5B, given, is_cuda=False)
    channel = 2 * 2 * QWEN_1_5B.num_parameters
    assert on_cpu.num_bytes == 4 * on_cpu.rollout.num_bytes + on_cpu.training.num_bytes + channel
    shared, apart = (
        fit(40 * GIB, QWEN_1_5B, settings(schedule={"placement": placement}, trainer={"gradient_checkpointing": True}))
        for placement in ("shared", "disaggregated")
    )
    assert shared.kv_tokens < apart.kv_tokens


def test_given_numbers_are_kept_and_schedules_that_start_more_run_more() -> None:
    given = settings(rollout={"max_running": 7, "prefill_chunk": 99}, trainer={"max_tokens_per_gpu": 5000})
    found = fit(140 * GIB, SMOLLM, given)
    assert (found.max_running, found.prefill_chunk, found.max_tokens_per_gpu) == (7, 99, 5000)
    assert found.kv_tokens == 7 * 1296
    assert in_flight(settings(schedule={"preset": "active-partial"})) == 512
    assert in_flight(settings(schedule={"preset": "one-step"})) == 512
    assert in_flight(settings(schedule={"preset": "staleflow", "max_staleness": 3})) == 1024


# Where the numbers come from


CARD = Card(name="a card", total=140 * GIB, free=139 * GIB)


def test_on_a_cpu_the_defaults_do_not_depend_on_memory() -> None:
    given = load(None, {"model.device": "cpu"})
    found, line = card_defaults.resolve(given)
    assert (found.rollout.max_running, found.rollout.kv_tokens, found.rollout.prefill_chunk) == (128, None, 512)
    assert (found.trainer.max_tokens_per_gpu, line) == (16384, None)
    assert find_card(given) is None


def test_on_a_card_the_numbers_are_fitted_and_said() -> None:
    found, line = card_defaults.resolve(load(None), find=lambda given: CARD)
    assert found.rollout.max_running == 256
    assert found.rollout.prefill_chunk == 8192
    assert line is not None
    assert "a card, 139 GiB free: max_running 256" in line


def test_a_continued_run_keeps_its_numbers_on_another_card(tmp_path: Path) -> None:
    given = load(None, {"output_dir": str(tmp_path / "run")})
    directory = RunDirectory.open(given)
    begun, _ = card_defaults.resolve(given, directory.stored_settings(), find=lambda given: CARD)
    directory.begin(begun, {})
    directory.journal.write_text("an event\n")
    directory.close()
    again = RunDirectory.open(given)
    other = Card(name="a small card", total=8 * GIB, free=8 * GIB)
    continued, line = card_defaults.resolve(given, again.stored_settings(), find=lambda given: other)
    again.close()
    assert (continued, line) == (begun, None)
    with pytest.raises(SettingsError, match=r"other settings \(rollout\.max_running\)"):
        RunDirectory.open(load(None, {"output_dir": str(tmp_path / "run"), "rollout.max_running": "3"}))


def test_the_arithmetic_has_the_numbers_of_the_engine_and_of_the_weight_channel() -> None:
    assert fitting.PAGE_SIZE == runner_choice.PAGE_SIZE
    assert fitting.LOOKAHEAD == 2 * runner_choice.STEPS_PER_REPLAY
    assert channel_memory.CHANNEL_SLOTS == control_file.NUM_SLOTS


# Dry runs


def test_a_dry_run_checks_everything_says_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    lines: list[str] = []
    given = load("quickstart", {"output_dir": str(tmp_path / "run"), "model.device": "cpu"})
    assert dry_run(given, lines.append).rollout.max_running == 128
    text = "\n".join(lines)
    for words in (
        "schedule: sync, 40 steps of 32 prompts x 8 responses",
        "KV cache",
        "AdamW",
        "memory: about",
        "devices: ",
    ):
        assert words in text
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"data.train": "absent.jsonl"}, "absent.jsonl"),
        ({"rollout.kv_tokens": "1000000000000"}, "GiB are available; lower rollout.kv_tokens"),
    ],
)
def test_a_dry_run_of_what_cannot_run_is_refused(overrides: dict[str, str], words: str, tmp_path: Path) -> None:
    given = load("quickstart", {"output_dir": str(tmp_path / "run"), "model.device": "cpu"} | overrides)
    with pytest.raises(SettingsError, match=words):
        dry_run(given, lambda line: None)
