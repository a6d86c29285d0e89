"""Runs planned for GPUs that are not here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli.main import main
from tailrace.commands.preflight.dry_run import dry_run_on
from tailrace.commands.preflight.planned import shape_of
from tailrace.config.load import SettingsError, check
from tailrace.config.settings import Settings
from tailrace.sizing.card import parse_card
from tailrace.sizing.fitting import RESERVE, fit
from tailrace.sizing.memory_plan import MemoryPlan, plan

GIB = 2**30
SHAPE = shape_of("Qwen/Qwen2.5-7B")


def settings(**rollout: Any) -> Settings:
    given = {"engine": "vllm", "kv_tokens": 100_000, "num_instances": 8, **rollout}
    model = {"path": "Qwen/Qwen2.5-7B", "device": "cuda", "dtype": "bfloat16"}
    return check({"model": model, "rollout": given, "trainer": {"num_ranks": 8, "gradient_checkpointing": True}})


def part(memory: MemoryPlan, name: str) -> int:
    return next(part.num_bytes for part in memory.rollout.parts if part.name == name)


def on_eight(given: Settings) -> MemoryPlan:
    return plan(SHAPE, given, is_cuda=True, num_devices=8)


def test_a_card_is_named_by_its_kind_or_size_and_may_be_counted() -> None:
    assert (parse_card("h100").available, parse_card("H100").count) == (79 * GIB, 1)
    assert (parse_card("8xH200").available, parse_card("8xH200").count) == (139 * GIB, 8)
    assert (parse_card("64x24GiB").available, parse_card("64x24GiB").count) == (24 * GIB, 64)


@pytest.mark.parametrize("text", ["", "H900", "0xH100", "80GB", "x80GiB", "8 x H100"])
def test_anything_else_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ValueError, match="A100-80GB, B200, H100"):
        parse_card(text)


def test_instances_are_spread_over_the_gpus() -> None:
    assert on_eight(settings()).rollout.count == 1
    assert on_eight(settings(num_instances=9)).rollout.count == 2
    assert plan(SHAPE, settings(), is_cuda=True).rollout.count == 8
    assert plan(SHAPE, settings(tensor_parallel_size=2), is_cuda=False).rollout.count == 8


def test_the_gpus_of_one_instance_divide_its_weights_and_kv_cache() -> None:
    whole, half = on_eight(settings()), on_eight(settings(tensor_parallel_size=2, num_instances=4))
    assert half.rollout.count == 1
    for name in ("weights", "KV cache"):
        assert part(half, name) == part(whole, name) // 2


def test_a_head_of_the_kv_cache_is_not_divided() -> None:
    assert SHAPE.num_kv_heads == 4
    four, eight = (on_eight(settings(tensor_parallel_size=size, num_instances=1)) for size in (4, 8))
    assert part(eight, "KV cache") == part(four, "KV cache")
    assert part(eight, "weights") == part(four, "weights") // 2


def test_more_gpus_leave_more_room_on_each() -> None:
    given = settings(kv_tokens=None, max_running=None)
    one, eight = (fit(79 * GIB, SHAPE, given, num_devices=count) for count in (1, 8))
    assert one.kv_tokens < eight.kv_tokens
    memory = plan(SHAPE, eight.applied(given), is_cuda=True, num_devices=8)
    assert memory.num_bytes <= (1 - RESERVE) * 79 * GIB


def test_a_plan_reads_sizes_from_files_that_are_here(tmp_path: Path) -> None:
    config = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_attention_heads": 4}))
    assert shape_of(str(tmp_path)).num_layers == 2
    assert shape_of("tiny-arith").num_layers > 0
    with pytest.raises(ValueError, match=r"'other/model' are not known: .* Qwen/Qwen3-8B"):
        shape_of("other/model")


def test_a_plan_says_what_the_host_must_hold_and_what_it_has_not_checked() -> None:
    lines: list[str] = []
    dry_run_on(parse_card("8xH100"), settings(), lines.append)
    text = "\n".join(lines)
    assert "model: Qwen/Qwen2.5-7B, bfloat16, on 8 x H100" in text
    # Two versions (28.4), eight pulled copies (113.5), 16 processes (8), and a parameter that eight ranks gather (8.1).
    assert "memory of the host: about 158 GiB" in text
    assert "not checked, because this is a plan" in text
    assert "memory: on each GPU, about" in text


def test_a_plan_says_that_the_native_engine_will_decode_one_token_at_a_time(tmp_path: Path) -> None:
    config = {"vocab_size": 100, "hidden_size": 192, "intermediate_size": 128, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_attention_heads": 2}))

    def said(**rollout: Any) -> str:
        model = {"path": str(tmp_path), "device": "cuda", "dtype": "bfloat16"}
        lines: list[str] = []
        dry_run_on(parse_card("H100"), check({"model": model, "rollout": rollout}), lines.append)
        return "\n".join(lines)

    assert "decoding one token at a time (plain): heads have 96 dimensions" in said()
    assert "one token at a time" not in said(decoding="plain") + said(engine="vllm")


@pytest.mark.parametrize(
    ("section", "changes", "words"),
    [
        ("trainer", {"weight_channel": "cuda-ipc"}, "'cuda-ipc', which works inside one GPU"),
        ("trainer", {"weight_channel": "collective"}, "NCCL takes no two processes on one GPU"),
        (
            "rollout",
            {"tensor_parallel_size": 8, "num_instances": 1},
            "28 attention heads, which cannot be divided by 8",
        ),
        ("rollout", {"tensor_parallel_size": 2, "num_instances": 4}, "needs GPUs that training does not use"),
    ],
)
def test_a_plan_refuses_what_the_start_would_refuse(section: str, changes: dict[str, Any], words: str) -> None:
    given = settings()
    changed = {section: getattr(given, section).model_copy(update=changes), "runtime": "ray"}
    with pytest.raises(SettingsError, match=words):
        dry_run_on(parse_card("8xH200"), given.model_copy(update=changed), lambda line: None)


def test_a_plan_checks_responses_against_the_positions_of_a_config_that_is_here(tmp_path: Path) -> None:
    config = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    sizes = config | {"num_attention_heads": 4, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(sizes))

    def said(length: int) -> str:
        lines: list[str] = []
        data = {"model": {"path": str(tmp_path), "device": "cuda"}, "rollout": {"max_response_length": length}}
        dry_run_on(parse_card("H100"), check(data), lines.append)
        return "\n".join(lines)

    assert "train: a prompt may have at most 112 tokens" in said(400)
    with pytest.raises(
        SettingsError, match=r"512 positions .* but rollout.max_response_length is 512, which leaves none"
    ):
        said(512)


def test_a_schedule_that_does_not_work_is_refused() -> None:
    given = settings()
    changed = given.schedule.model_copy(update={"preset": "one-step", "placement": "colocated"})
    with pytest.raises(SettingsError, match="the schedule does not work"):
        dry_run_on(parse_card("8xH100"), given.model_copy(update={"schedule": changed}), lambda line: None)


def test_the_command_prints_the_fitted_settings_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "qwen-gpu", "--dry-run", "--card", "H100"]) == 0
    assert "in all, of 79.0 GiB (H100)" in capsys.readouterr().out
    assert main(["train", "qwen-gpu", "--dry-run", "--show-settings", "--card", "H100"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["trainer"]["max_tokens_per_gpu"] == 32768
    assert "in all, of 79.0 GiB (H100)" in printed.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--card", "H100"], "--card is for planning: give --dry-run too"),
        (["--card", "H900", "--dry-run"], "unknown card 'H900'"),
    ],
)
def test_the_command_refuses_a_card_that_it_cannot_use(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "qwen-gpu", *arguments]) == 2
    assert words in capsys.readouterr().err
