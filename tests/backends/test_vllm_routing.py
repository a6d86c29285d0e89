"""A mixture of experts on vLLM: the experts that it chooses, token by token, and whole runs that compare them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from transformers import AutoModelForCausalLM, PreTrainedModel

from contract.engine_suite import parts
from end_to_end import launch
from engines.rollouts import finish_all, make_request, random_prompt, responses, save_random_model, small_llama
from tailrace.core.ids import Version
from tailrace.data.models import resolve_model
from tailrace.engines.contract import Output, Request, Unsupported
from tailrace.engines.vllm.engine import VllmEngine
from tailrace.engines.vllm.options import VllmOptions
from tailrace.store.segment import ResponsePayload, Routing, Segment, join
from trainer.mixtures import routers, small_mixture

MakeEngine = Callable[..., VllmEngine]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES: dict[str, Any] = {"hidden_size": 64, "moe_intermediate_size": 32, "head_dim": 32, "initializer_range": 0.25}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixture")
    save_random_model(folder, small_mixture(**SIZES))
    return folder


@pytest.fixture
def make_engine(checkpoint: Path) -> Iterator[MakeEngine]:
    made: list[VllmEngine] = []

    def make(path: Path = checkpoint, **options: Any) -> VllmEngine:
        asked = {
            "max_running": 4,
            "max_length": 200,
            "kv_tokens": 800,
            "prefill_chunk": 16,
            "routing": "always",
        } | options
        made.append(VllmEngine(path, seed=0, options=VllmOptions(**asked), device=DEVICE))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@torch.no_grad()
def chosen(model: PreTrainedModel, request: Request, response: ResponsePayload) -> Routing:
    """The experts that Transformers chooses where each response token is predicted."""
    found: list[torch.Tensor] = []
    hooks = [each.register_forward_hook(lambda *given: found.append(given[2][2])) for each in routers(model)]
    tokens = np.concatenate([request.prompt, response.tokens]).astype(np.int64)
    model(torch.from_numpy(tokens)[None, :-1])
    for hook in hooks:
        hook.remove()
    return torch.stack(found, dim=1)[len(request.prompt) - 1 :].numpy().astype(np.int16)


def agreement(expected: Routing, found: Routing | None) -> float:
    """Share of (token, layer) with the same experts in any order."""
    assert found is not None
    assert found.shape == expected.shape
    return float((np.sort(found, axis=-1) == np.sort(expected, axis=-1)).all(axis=-1).mean())


def assert_right(path: Path, requests: Sequence[Request], outputs: Sequence[Output]) -> None:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    for request, response in zip(requests, responses(requests, outputs).values(), strict=True):
        expected = chosen(model, request, response)
        assert agreement(expected, response.routing) == 1
        # Rows that belong to the neighbouring positions would be seen.
        assert agreement(expected[1:], response.routing[:-1]) < 0.9


def test_experts_are_those_of_transformers(make_engine: MakeEngine, checkpoint: Path) -> None:
    """Prompts in several chunks, shared prompts from the prefix cache, more requests than run at a time."""
    engine = make_engine()
    requests = [make_request(0, member, prompt=random_prompt(0, 90), budget=30) for member in range(3)]
    requests += [make_request(index, budget=10 + 5 * index) for index in range(1, 6)]
    engine.submit(requests[:1])
    outputs = finish_all(engine)
    engine.submit(requests[1:])
    assert_right(checkpoint, requests, outputs + finish_all(engine))


def test_a_response_that_is_reported_in_parts_interrupted_and_resumed_keeps_its_experts(
    make_engine: MakeEngine, checkpoint: Path
) -> None:
    engine = make_engine()
    requests = [make_request(index, budget=40) for index in range(3)]
    engine.submit(requests)
    outputs: list[Output] = []
    for _ in range(20):
        assert not engine.step()
        outputs += engine.progress()
    outputs += engine.interrupt([request.response_id for request in requests])
    before = {request.response_id: _joined(request, outputs) for request in requests}
    resumed = [
        make_request(index, prefix=before[request.response_id].tokens, budget=40)
        for index, request in enumerate(requests)
    ]
    engine.submit(resumed)
    assert all(0 < len(response) < 40 for response in before.values())
    assert_right(checkpoint, requests, outputs + finish_all(engine))


def _joined(request: Request, outputs: Sequence[Output]) -> ResponsePayload:
    segments: list[Segment] = [
        output.segment for output in outputs if output.segment.response_id == request.response_id
    ]
    return join(request.response_id, segments)


def test_preempted_requests_keep_their_experts(make_engine: MakeEngine, checkpoint: Path) -> None:
    engine = make_engine(max_length=160, kv_tokens=192)
    requests = [make_request(index, budget=120) for index in range(4)]
    engine.submit(requests)
    outputs = finish_all(engine)
    assert engine.stats().num_preemptions > 0
    assert_right(checkpoint, requests, outputs)


def test_after_a_pull_experts_are_those_of_the_new_weights(make_engine: MakeEngine, tmp_path: Path) -> None:
    other = save_random_model(tmp_path, small_mixture(**SIZES), seed=1)
    engine, requests = make_engine(), [make_request(budget=30)]
    engine.pull(parts(engine, dict(other.state_dict())), Version(1))
    engine.submit(requests)
    assert_right(tmp_path, requests, finish_all(engine))


@pytest.mark.skipif(DEVICE != "cpu", reason="needs two GPUs")
def test_the_first_of_two_ranks_tells_the_experts(make_engine: MakeEngine, checkpoint: Path) -> None:
    engine, requests = make_engine(tensor_parallel_size=2), [make_request(index, budget=20) for index in range(2)]
    engine.submit(requests)
    assert_right(checkpoint, requests, finish_all(engine))


def test_a_request_without_a_token_left_has_experts_of_no_token(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit([make_request(prefix=[1, 2, 3], budget=3)])
    [output] = engine.step()
    assert output.segment.routing is not None
    assert output.segment.routing.shape == (0, 2, 2)


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU vLLM itself refuses")
def test_a_model_without_experts_is_refused_and_auto_goes_on(make_engine: MakeEngine, tmp_path: Path) -> None:
    save_random_model(tmp_path, small_llama(head_dim=32))
    with pytest.raises(Unsupported, match="vLLM has no module with a router in this model"):
        make_engine(tmp_path)
    engine = make_engine(tmp_path, routing="auto")
    engine.submit([make_request(budget=5)])
    assert [output.segment.routing for output in finish_all(engine)] == [None]


REWARD = """
def shortness(prompts, completions, completion_ids, **columns):
    return [1 / len(ids) for ids in completion_ids]
"""


@pytest.mark.parametrize(
    "asked",
    [
        {"schedule__preset": "sync", "rollout__engine": "auto"},
        {"schedule__preset": "active-partial", "rollout__engine": "vllm", "trainer__replay_routing": True},
    ],
    ids=["sync", "active-partial with replay"],
)
def test_a_run_says_how_well_the_routers_of_vllm_and_the_trainer_agree(asked: dict[str, Any], tmp_path: Path) -> None:
    model, tiny = tmp_path / "model", resolve_model("tiny-arith")
    save_random_model(model, small_mixture(**SIZES, vocab_size=19, bos_token_id=1, eos_token_id=2, pad_token_id=0))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, model)
    (tmp_path / "rewards.py").write_text(REWARD)
    run = launch.train_well(
        tmp_path / "run",
        model__path=model,
        model__device=DEVICE,
        reward__functions=f"{tmp_path / 'rewards.py'}:shortness",
        schedule__max_steps=3,
        **asked,
    )
    lines = [json.loads(line) for line in (run.output / "metrics.jsonl").read_text().splitlines()]
    rows = [line for line in lines if "reward/mean" in line]
    assert [row["step"] for row in rows] == [1, 2, 3]
    if asked["rollout__engine"] == "auto":
        assert "the native engine does not support Qwen3MoeForCausalLM" in run.said
    # The two are compared where the weights are the same: a batch of resumed responses may hold no such token.
    compared = [row for row in rows if "mismatch/router_agreement" in row]
    assert compared[0] is rows[0]
    assert len(compared) == 3 or asked["schedule__preset"] != "sync"
    for row in compared:
        print({name: value for name, value in row.items() if name.startswith("mismatch/")})
        assert row["actor/grad_norm"] > 0
        # For a resumed response the trainer replays the experts that its first tokens had under older weights, but vLLM
        # read those tokens again with the new ones. How many such tokens a batch has depends on the pace of the run.
        is_whole = row is rows[0] or asked["schedule__preset"] == "sync"
        assert row["mismatch/router_agreement"] > (0.99 if is_whole else 0.9)
        assert row["mismatch/router_known"] == 1
        if asked["schedule__preset"] == "sync":
            assert row["mismatch/logprob_abs_diff_max"] < 1e-3
        assert ("mismatch/router_replayed_tokens" in row) == ("trainer__replay_routing" in asked)
