"""The pieces that the core chooses, in random histories, have the gradient of the whole batch. Until the step is taken,
no weight and no optimizer state changes."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.test_lending import begun
from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.variants import LOSSES
from tailrace.core import commands as do
from tailrace.core.ids import ResponseId
from tailrace.core.schedule import Lending, SharedPlace
from tailrace.store.segment import ResponsePayload
from tailrace.trainer.batch import Sample, in_groups
from tailrace.trainer.trainer import Trainer
from trainer import rank_scenarios
from trainer.conftest import VOCAB_SIZE
from trainer.probes import gradient, weights
from trainer.rank_process import Plan, run
from trainer.test_pieces import SMALL, VARIANTS, in_fp64

Groups = list[list[Sample]]
PLACES = (SharedPlace(instances=(0,), replicas=(0,)), SharedPlace(instances=(1,), replicas=(1,)))
MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")
SETTINGS = VARIANTS | {
    f"{loss}, {mode}": AlgorithmSettings(loss=loss, loss_agg_mode=mode) for loss, mode in product(LOSSES, MODES)
}


def steps(seed: int, *, lends: bool) -> Iterator[list[do.Accumulate]]:
    """The pieces of each step of a run in which groups complete in a random order."""
    lending = Lending(strategy="fixed", places=PLACES, at=0.2) if lends else Lending()
    world = begun(batch_size=6, group_size=3, lending=lending, max_steps=3, max_in_flight=6)
    world.rng = random.Random(seed)
    while world.verdict is None:
        world.advance()
    pieces = [c for entry in world.entries for c in entry.commands if isinstance(c, do.Accumulate)]
    for version in range(3):
        yield [piece for piece in pieces if piece.version == version]


def a_step(name: str, *, lends: bool, num_pieces: int) -> list[do.Accumulate]:
    """One of many pieces, in another order of arrival for each name; one of its groups has no loss token. If instances
    are lent, some of the pieces are for one replica."""
    first = zlib.crc32(name.encode())
    for step in (step for seed in range(first, first + 1000) for step in steps(seed, lends=lends)):
        has_empty = any(response.group.prompt % 5 == 0 for piece in step for response in piece.responses)
        if len(step) >= num_pieces and has_empty and any(piece.replicas for piece in step) == lends:
            return step
    raise AssertionError("no such step")


def sample(response: ResponseId, score: float) -> Sample:
    """Any tokens, the same for the same response. Some responses, and one group, have no loss token."""
    draw = np.random.default_rng(zlib.crc32(str(response).encode()))
    length = int(draw.integers(1, 16))
    logprobs = draw.normal(-3.0, 0.3, length).astype(np.float32)
    is_masked = response.member == 1 or response.group.prompt % 5 == 0
    payload = ResponsePayload(
        response_id=response,
        tokens=draw.integers(1, VOCAB_SIZE, length, dtype=np.int32),
        logprobs=logprobs,
        behaviour_logprobs=logprobs,
        mask=np.zeros(length, np.uint8) if is_masked else (draw.random(length) < 0.8).astype(np.uint8),
        versions=((0, length),),  # type: ignore[arg-type]
    )
    prompt = np.random.default_rng(response.group.prompt).integers(2, VOCAB_SIZE, 5, dtype=np.int32)
    return Sample(response_id=response, prompt=prompt, response=payload, score=score)


def groups_of(piece: do.Accumulate) -> Groups:
    return in_groups(sample(response, score) for response, score in zip(piece.responses, piece.scores, strict=True))


def whole(step: list[do.Accumulate]) -> Groups:
    return in_groups(each for piece in step for group in groups_of(piece) for each in group)


def state(trainer: Trainer) -> list[torch.Tensor]:
    moments = [value for each in trainer._optimizer.state.values() for value in each.values()]
    return [*(p.detach().clone() for p in trainer.model.parameters()), *(m.clone() for m in moments)]


@pytest.mark.parametrize("name", SETTINGS)
def test_the_pieces_of_the_core_have_the_gradient_of_the_whole_batch(
    make_trainer: Callable[..., Trainer], exact_model_path: Path, name: str
) -> None:
    in_pieces = a_step(name, lends=False, num_pieces=4)
    batch = whole(in_pieces)
    assert any(sum(each.num_loss_tokens for each in group) == 0 for group in batch), "a group without a loss token"
    gradients, updated = [], []
    for is_streamed in (False, True):
        trainer = in_fp64(
            make_trainer(algorithm=SETTINGS[name], settings=SMALL, path=exact_model_path, max_response_length=20)
        )
        trainer.train(batch)  # so that there are moments
        before = state(trainer)
        for groups in [groups_of(piece) for piece in in_pieces] if is_streamed else [batch]:
            trainer.accumulate(groups)
        assert all(torch.equal(old, new) for old, new in zip(before, state(trainer), strict=True))
        gradients.append(gradient(trainer.model))
        trainer.finish_step()
        updated.append(weights(trainer.model))
    assert gradients[0].abs().max() > 1e-4
    assert (gradients[0] - gradients[1]).abs().max() < 1e-10
    assert (updated[0] - updated[1]).abs().max() < 1e-10


@pytest.mark.slow
@pytest.mark.long
def test_pieces_for_some_replicas_give_the_weights_of_the_whole_batch(tmp_path: Path, exact_model_path: Path) -> None:
    """On two replicas of two shards each, in fp64."""
    plans = {}
    for name in ("ppo", "ppo-dual-clip-kl", "gspo", "sapo-dr"):
        step = a_step(name, lends=True, num_pieces=3)
        assert {piece.replicas for piece in step} > {()}
        given: dict[str, Any] = rank_scenarios.given() | {"algorithm": SETTINGS[name]}
        given["settings"] = given["settings"].model_copy(update={"learning_rate": 1e-3})
        pieces = [("accumulate", groups_of(piece), list(piece.replicas) or None) for piece in step]
        unchanged: list[tuple[Any, ...]] = [("masters",), *pieces, ("masters",), ("finish_step",), ("masters",)]
        at_once: list[tuple[Any, ...]] = [("accumulate", whole(step), None), ("finish_step",), ("masters",)]
        on_host = given["settings"].model_copy(update={"gradients_device": "cpu", "optimizer_device": "cpu"})
        for kind, actions, settings in (
            ("streamed", unchanged, given["settings"]),
            ("streamed on the host", unchanged, on_host),
            ("whole", at_once, given["settings"]),
        ):
            plans[f"{kind} {name}"] = Plan(
                model_path=exact_model_path, given=given | {"settings": settings}, actions=actions, is_in_fp64=True
            )
    found = run(plans, tmp_path, num_shards=2, num_replicas=2, tensor_parallel_size=1)
    for name in ("ppo", "ppo-dual-clip-kl", "gspo", "sapo-dr"):
        ranks = [*found[f"streamed {name}"], *found[f"streamed on the host {name}"]]
        for streamed, together in zip(ranks, found[f"whole {name}"] * 2, strict=True):
            before, later, after = streamed.weights
            [expected] = together.weights
            assert all(torch.equal(before[each], later[each]) for each in before), "changed before the step"
            assert any(not torch.equal(later[each], after[each]) for each in before)
            assert {tensor.dtype for tensor in expected.values()} == {torch.float64}
            assert max((after[each] - expected[each]).abs().max() for each in expected) < 1e-10
