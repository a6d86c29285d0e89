"""The replay engine keeps the engine contract, on responses that the native engine has just recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.register_assert_rewrite("contract.engine_suite")

from transformers import PreTrainedModel  # noqa: E402

from contract.engine_suite import *  # noqa: E402, F403
from engines.rollouts import finish_all, generate, make_request, responses, save_random_model  # noqa: E402
from tailrace.core.ids import ResponseId, Version  # noqa: E402
from tailrace.core.responses.response import Finish  # noqa: E402
from tailrace.engines.contract import Engine, Request, Unservable  # noqa: E402
from tailrace.engines.native.engine import NativeEngine  # noqa: E402
from tailrace.engines.native.limits import EngineLimits  # noqa: E402
from tailrace.engines.replay.engine import ReplayEngine  # noqa: E402
from tailrace.engines.replay.saved_rollouts import SavedResponse  # noqa: E402


class RecordThenReplay(ReplayEngine):
    """Has the native engine generate what it is asked for, then replays that."""

    def __init__(self, recorder: Engine, *, max_running: int) -> None:
        self._recorder = recorder
        self.tape: dict[ResponseId, SavedResponse] = {}
        super().__init__(self.tape.__getitem__, max_running=max_running)

    def submit(self, requests: Sequence[Request]) -> None:
        self._recorder.submit(requests)
        outputs = finish_all(self._recorder)
        finishes = {output.segment.response_id: output.finish for output in outputs}
        for response_id, response in responses(requests, outputs).items():
            self.tape[response_id] = SavedResponse(response=response, finish=finishes[response_id])
        super().submit(requests)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def reference_model(checkpoint: Path) -> PreTrainedModel:
    return save_random_model(checkpoint)


@pytest.fixture
def weights() -> Mapping[str, torch.Tensor]:
    return {}


@pytest.fixture
def make_engine(checkpoint: Path, reference_model: PreTrainedModel) -> Callable[..., RecordThenReplay]:
    def make(*, max_running: int = 8, seed: int = 0, **options: Any) -> RecordThenReplay:
        recorder = NativeEngine(checkpoint, seed=seed, limits=EngineLimits(max_running=8, max_length=160), **options)
        return RecordThenReplay(recorder, max_running=max_running)

    return make


def test_the_replay_counts_as_the_work_of_the_version_pulled(make_engine: Callable[..., RecordThenReplay]) -> None:
    engine = make_engine()
    engine.pull([], Version(7))
    [response] = generate(engine, [make_request()]).values()
    [saved] = engine.tape.values()
    assert saved.response.versions == ((0, 20),)
    assert response.versions == ((7, 20),)
    np.testing.assert_array_equal(response.tokens, saved.response.tokens)
    np.testing.assert_array_equal(response.logprobs, saved.response.logprobs)


def test_a_smaller_budget_cuts_the_saved_response(make_engine: Callable[..., RecordThenReplay]) -> None:
    recorded = make_engine()
    generate(recorded, [make_request(budget=20, stop_token_ids=(4,))])
    engine = ReplayEngine(recorded.tape.__getitem__, max_running=8)
    [saved] = recorded.tape.values()
    engine.submit([make_request(budget=2)])
    [output] = finish_all(engine)
    assert output.finish is Finish.LENGTH
    assert output.segment.tokens.tolist() == saved.response.tokens[:2].tolist()


def test_a_prefix_of_other_tokens_and_a_longer_forced_length_are_unservable(
    make_engine: Callable[..., RecordThenReplay],
) -> None:
    recorded = make_engine()
    generate(recorded, [make_request(budget=20)])
    engine = ReplayEngine(recorded.tape.__getitem__, max_running=8)
    [saved] = recorded.tape.values()
    with pytest.raises(Unservable, match="does not begin with the 1 tokens"):
        engine.submit([make_request(prefix=[(saved.response.tokens[0] + 1) % 32])])
    with pytest.raises(Unservable, match="has 20 tokens, not 21"):
        engine.submit([make_request(budget=40, forced_length=21)])
    assert engine.step() == []
