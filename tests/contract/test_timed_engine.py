"""The timed engine keeps the engine contract, and sleeps as long as its cost model says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.register_assert_rewrite("contract.engine_suite")

from contract.engine_suite import *  # noqa: E402, F403
from engines.rollouts import VOCAB_SIZE, finish_all, generate, make_request, random_prompt  # noqa: E402
from tailrace.core.costs import CostModel  # noqa: E402
from tailrace.core.ids import Version  # noqa: E402
from tailrace.engines.contract import Unsupported  # noqa: E402
from tailrace.engines.timed.engine import TimedEngine  # noqa: E402
from tailrace.engines.timed.made_up import MadeUpModel  # noqa: E402

COSTS = CostModel(k1=0.001, k2=0.5, k3=0.2, k4=2.0, prefill_s=0.01)


class SameEverywhere:
    """Stands in for the Transformers model: the same logits at every position."""

    def __call__(self, tokens: torch.Tensor) -> SimpleNamespace:
        logits = torch.from_numpy(MadeUpModel(VOCAB_SIZE, seed=0).logits())
        return SimpleNamespace(logits=logits.expand(*tokens.shape, -1))

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {}


@pytest.fixture
def reference_model() -> SameEverywhere:
    return SameEverywhere()


@pytest.fixture
def weights() -> Mapping[str, torch.Tensor]:
    return {}


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def make_engine(slept: list[float]) -> Callable[..., TimedEngine]:
    def make(
        *, max_running: int = 8, seed: int = 0, decode_text: Any = None, deterministic: bool = False
    ) -> TimedEngine:
        model = MadeUpModel(VOCAB_SIZE, seed=seed, decode_text=decode_text)
        return TimedEngine(model, COSTS, max_running=max_running, sleep=slept.append)

    return make


def test_a_step_takes_what_the_cost_model_says_for_its_load(
    make_engine: Callable[..., TimedEngine], slept: list[float]
) -> None:
    engine = make_engine(max_running=3)
    engine.submit([make_request(index, prompt=random_prompt(index, 10), budget=2) for index in range(4)])
    for _ in range(5):
        engine.step()
    first, second = 0.001 * 3 * 11 + 0.6 + 2.0, 0.001 * 3 * 12 + 0.6 + 2.0
    alone = [0.001 * 11 + 0.5 + 2.0, 0.001 * 12 + 0.5 + 2.0]
    # Three run and one waits: the prompts of three are prefilled before the first step, the fourth's before the third.
    assert slept == pytest.approx([first + 0.01 * 30, second, alone[0] + 0.01 * 10, alone[1]])


def test_a_resumed_response_prefills_its_prefix_too(
    make_engine: Callable[..., TimedEngine], slept: list[float]
) -> None:
    engine = make_engine()
    engine.submit([make_request(prompt=random_prompt(0, 10), prefix=[1] * 5, budget=7)])
    finish_all(engine)
    assert slept == pytest.approx([0.001 * 16 + 2.5 + 0.01 * 15, 0.001 * 17 + 2.5])


def test_an_engine_without_work_does_not_sleep(make_engine: Callable[..., TimedEngine], slept: list[float]) -> None:
    engine = make_engine()
    requests = [make_request(index, budget=50) for index in range(3)]
    engine.submit(requests)
    engine.step()
    engine.interrupt([requests[0].response_id])
    engine.abort([request.response_id for request in requests[1:]])
    before = len(slept)
    assert engine.step() == []
    assert len(slept) == before == 1


def test_ended_requests_leave_nothing_behind(make_engine: Callable[..., TimedEngine]) -> None:
    engine = make_engine(max_running=2)
    requests = [make_request(index, budget=50) for index in range(4)]
    engine.submit(requests)
    engine.step()
    engine.interrupt([requests[0].response_id, requests[3].response_id])
    engine.abort([requests[1].response_id, requests[2].response_id])
    assert (engine._prompt_lengths, engine._to_prefill) == ({}, {})


def test_tokens_get_the_version_last_pulled(make_engine: Callable[..., TimedEngine]) -> None:
    engine = make_engine()
    [before] = generate(engine, [make_request()]).values()
    engine.pull([], Version(3))
    [after] = generate(engine, [make_request()]).values()
    assert (before.versions, after.versions) == (((0, 20),), ((3, 20),))
    np.testing.assert_array_equal(before.tokens, after.tokens)


def test_likelier_tokens_are_drawn_more_often() -> None:
    model = MadeUpModel(VOCAB_SIZE, seed=0)
    drawn = model.respond(make_request(budget=20_000)).response.tokens
    shares = np.bincount(drawn, minlength=VOCAB_SIZE) / len(drawn)
    expected = np.exp(model.logits()) / np.exp(model.logits()).sum()
    np.testing.assert_allclose(shares, expected, atol=0.01)


def test_stop_strings_need_a_decoder(make_engine: Callable[..., TimedEngine]) -> None:
    engine = make_engine()
    with pytest.raises(Unsupported, match="the timed engine was given no decoder"):
        engine.submit([make_request(stop_strings=("x",))])
    assert engine.stats().num_waiting == 0
