"""An engine that declares nothing keeps the engine contract too.

It stands for engines that draw from one random stream, lose unreturned tokens at an interrupt, return tokens when a
request ends and keep their memory. The suite holds such an engine to what it declares, and to refusing the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.register_assert_rewrite("contract.engine_suite")

from transformers import PreTrainedModel  # noqa: E402

from contract.engine_suite import *  # noqa: E402, F403
from engines.rollouts import generate, make_request, save_random_model  # noqa: E402
from tailrace.core.ids import ResponseId, Version  # noqa: E402
from tailrace.core.responses.response import Finish  # noqa: E402
from tailrace.engines.contract import Capabilities, Engine, Output, Request, Stats, Unsupported  # noqa: E402
from tailrace.engines.native.engine import NativeEngine  # noqa: E402
from tailrace.engines.native.limits import EngineLimits  # noqa: E402
from tailrace.weights.sharding.table import Holding  # noqa: E402

CAPABILITIES = Capabilities(
    name="plain",
    has_keyed_randomness=False,
    has_exact_interrupt=False,
    streams_progress=False,
    has_deterministic_mode=False,
    releases_memory=False,
    uses_weights=True,
    has_kv_cache=True,
)


class PlainEngine:
    """Generates with the native engine, under names of its own: each submission draws other random numbers."""

    capabilities = CAPABILITIES

    def __init__(self, inner: Engine) -> None:
        self._inner = inner
        self._num_submitted = 0
        self._inner_names: dict[ResponseId, ResponseId] = {}
        self._names: dict[ResponseId, ResponseId] = {}

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.response_id in self._inner_names:
                raise ValueError(f"{request.response_id} is already live")
        renamed = []
        for request in requests:
            self._num_submitted += 1
            inner_name = request.response_id._replace(attempt=self._num_submitted)
            self._inner_names[request.response_id], self._names[inner_name] = inner_name, request.response_id
            renamed.append(replace(request, response_id=inner_name))
        self._inner.submit(renamed)

    def step(self) -> list[Output]:
        return [self._ended(output) for output in self._inner.step()]

    def progress(self) -> list[Output]:
        raise Unsupported("the plain engine returns tokens only when a request ends")

    def interrupt(self, responses: Iterable[ResponseId]) -> list[Output]:
        live = [self._inner_names[name] for name in responses if name in self._inner_names]
        ended = [self._ended(output) for output in self._inner.interrupt(live)]
        return [Output(segment=_without_tokens(output.segment), finish=Finish.INTERRUPTED) for output in ended]

    def abort(self, responses: Iterable[ResponseId]) -> None:
        self.interrupt(responses)

    def layout(self) -> Holding:
        return self._inner.layout()

    def pull(self, weights: Mapping[str, torch.Tensor], version: Version) -> None:
        self._inner.pull(weights, version)

    def stats(self) -> Stats:
        return self._inner.stats()

    def release(self) -> None:
        raise Unsupported("the plain engine cannot release its memory")

    def restore(self) -> None:
        raise Unsupported("the plain engine cannot release its memory, so there is none to take again")

    def _ended(self, output: Output) -> Output:
        name = self._names.pop(output.segment.response_id)
        del self._inner_names[name]
        return replace(output, segment=replace(output.segment, response_id=name))


def _without_tokens(segment: Any) -> Any:
    return replace(
        segment,
        tokens=segment.tokens[:0],
        logprobs=segment.logprobs[:0],
        mask=segment.mask[:0],
        behaviour_logprobs=None if segment.behaviour_logprobs is None else segment.behaviour_logprobs[:0],
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def reference_model(checkpoint: Path) -> PreTrainedModel:
    return save_random_model(checkpoint)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, torch.Tensor]:
    return dict(save_random_model(tmp_path_factory.mktemp("other"), seed=1).state_dict())


@pytest.fixture
def make_engine(checkpoint: Path, reference_model: PreTrainedModel) -> Callable[..., Engine]:
    def make(
        *, max_running: int = 8, seed: int = 0, deterministic: bool = False, decode_text: Any = None
    ) -> PlainEngine:
        if deterministic:
            raise Unsupported("the plain engine has no deterministic mode")
        limits = EngineLimits(max_running=max_running, max_length=160)
        return PlainEngine(NativeEngine(checkpoint, seed=seed, limits=limits, decode_text=decode_text))

    return make


def test_this_engine_is_as_poor_as_it_declares(make_engine: Callable[..., Engine]) -> None:
    engine, request = make_engine(), make_request(budget=30)
    [first], [second] = (generate(engine, [request]).values() for _ in range(2))
    assert not np.array_equal(first.tokens, second.tokens), "its randomness is keyed after all"
    engine.submit([request])
    for _ in range(5):
        engine.step()
    [rest] = engine.interrupt([request.response_id])
    assert len(rest.segment.tokens) == 0, "its interrupt is exact after all"
