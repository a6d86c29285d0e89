"""The memory that a run allows its judge."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tailrace.config.load import assemble
from tailrace.config.settings import Settings
from tailrace.data.models import resolve_model
from tailrace.judge.template import YES_OR_NO, JudgeTemplate
from tailrace.runtime.inputs.judge_source import JudgeSource
from tailrace.sizing.judge_memory import judge_load
from tailrace.sizing.model_shape import ModelShape

TINY = resolve_model("tiny-arith")


def source(model: Path | None = TINY) -> JudgeSource:
    template = JudgeTemplate(user="{prompt}{response}", assistant="", is_chat=False)
    return JudgeSource(model=model, template=template, answers=YES_OR_NO, profile=None)


def settings(device: str = "cuda", **judge: Any) -> Settings:
    given = {"model": "tiny-arith", "prompt": "{prompt}{response}", "chat": False} | judge
    tree = {"model": {"path": "tiny-arith", "device": device}, "reward": {"functions": ["judge"], "judge": given}}
    return assemble(tree | {"schedule": {"preset": "rollpacker"}}, {}, hint=lambda line: None)


def test_half_of_a_judge_beside_rollout_lies_in_host_memory_on_a_gpu_only() -> None:
    on_gpu = source().with_budget(settings())
    load = judge_load(settings(), ModelShape.read(TINY), is_cuda=True)
    assert (on_gpu.budget_bytes, on_gpu.why_no_budget) == (load.half_bytes, "")
    on_cpu = source().with_budget(
        settings("cuda", memory_gb="half").model_copy(update={"model": settings("cpu").model})
    )
    assert on_cpu.budget_bytes is None
    assert on_cpu.note(settings().reward.judge).endswith(
        "no layers in host memory: on a CPU they are in its memory anyway"
    )


@pytest.mark.parametrize(("memory_gb", "expected"), [(3.5, 3.5 * 2**30), (None, None)])
def test_what_the_user_gives_holds(memory_gb: float | None, expected: float | None) -> None:
    assert source().with_budget(settings(memory_gb=memory_gb)).budget_bytes == expected


def test_a_judge_behind_a_server_has_no_budget() -> None:
    assert source(None).with_budget(settings(url="http://10.0.0.1:8000/v1")).budget_bytes is None


def test_a_judge_of_unknown_sizes_keeps_all_layers_and_the_note_says_why(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    del config["intermediate_size"]
    path.write_text(json.dumps(config))
    found = source(tmp_path / "model").with_budget(settings())
    assert found.budget_bytes is None
    assert "intermediate_size" in found.note(settings().reward.judge)
