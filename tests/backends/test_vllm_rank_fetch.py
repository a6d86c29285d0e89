"""A rollout worker whose vLLM has two ranks: each rank gets its own slices, straight from the channel."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("vllm")

from transformers import PreTrainedModel

from contract.engine_suite import largest_gap
from engines.rollouts import generate, make_request, random_prompt, save_random_model, small_llama
from tailrace.config.model_settings import ModelSettings
from tailrace.config.rollout_settings import RolloutSettings
from tailrace.core.ids import Version
from tailrace.engines.vllm.engine import VllmEngine
from tailrace.engines.vllm.options import VllmOptions
from tailrace.store.segment import ResponsePayload
from tailrace.weights.address import ChannelAddress
from tailrace.weights.collective.sink import CollectiveSink
from tailrace.weights.sharding.shards import ParameterPart, whole_parts
from tailrace.weights.sharding.table import Heads, Scheme, Split, holdings, volume
from tailrace.weights.sharding.transfer_plan import Slice
from tailrace.weights.slots.shared_memory import create
from tailrace.weights.slots.two_slots import layout_of
from tailrace.workers.messages import Pull, Pulled, PullFailed, RolloutInit
from tailrace.workers.rollout_worker import RolloutWorker
from workers.test_rollout_worker import Script, WaitsForEver

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="vLLM for GPUs does not compute on the CPU")

CONFIG = small_llama(head_dim=32, tie_word_embeddings=True)
CPU = torch.device("cpu")


class RecordingSink(CollectiveSink):
    """A sender that remembers which slices each receiver was sent. A receiver has a thread of its own."""

    def __init__(self, parts: list[ParameterPart]) -> None:
        super().__init__(parts, CPU)
        self.sent: dict[int, list[Slice]] = {}

    def part(self, tensors: Mapping[str, Tensor], one: Slice) -> Tensor:
        self.sent.setdefault(threading.get_ident(), []).append(one)
        return super().part(tensors, one)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    folder = tmp_path_factory.mktemp("old")
    save_random_model(folder, CONFIG)
    engine = VllmEngine(
        folder, seed=0, options=VllmOptions(max_running=4, max_length=200, kv_tokens=800, tensor_parallel_size=2)
    )
    yield engine
    engine.close()


def worker_of(engine: VllmEngine, *pulls: Pull) -> tuple[RolloutWorker, Script]:
    link = Script(*pulls)
    init = RolloutInit(
        checkpoint=Path(),
        model=ModelSettings(device="cpu"),
        rollout=RolloutSettings(engine="vllm", tensor_parallel_size=2),
        max_length=200,
        seed=0,
    )
    return RolloutWorker(link, init, engine, sleep=lambda _: None), link


def pull(engine: VllmEngine, channel: ChannelAddress, version: int) -> object:
    worker, link = worker_of(engine, Pull(version=Version(version), channel=channel))
    with pytest.raises(WaitsForEver):
        worker.run()
    [answer] = link.sent
    return answer


def weights_of(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def gap(engine: VllmEngine, model: PreTrainedModel) -> float:
    """Largest difference between the engine's log-probs and those of the model that it should be."""
    requests = [make_request(index) for index in range(2)]
    return largest_gap(model, requests, generate(engine, requests))


def answer(engine: VllmEngine) -> ResponsePayload:
    request = make_request(prompt=random_prompt(0, 100), temperature=0.0, budget=40)
    [response] = generate(engine, [request]).values()
    return response


def two_senders(weights: Mapping[str, Tensor], version: int) -> tuple[list[RecordingSink], ChannelAddress]:
    """Two training ranks, each with some rows of every parameter."""
    parameters = {part.parameter.name: part.parameter for part in whole_parts(layout_of(weights.items()))}
    rows, heads = Scheme(num_workers=2, split=Split.ROWS), Heads(num_query=4, num_kv=2, size=32)
    sinks = []
    for holding in holdings(list(parameters.values()), heads, rows, side="training"):
        parts = [ParameterPart(parameters[piece.parameter], piece.box) for piece in holding.pieces]
        sinks.append(RecordingSink(parts))
        own = [(part.parameter.name, weights[part.parameter.name][slice(*part.box[0])]) for part in parts]
        sinks[-1].publish(Version(version), own)
    for sink in sinks:
        sink.join(each.endpoint for each in sinks)
    return sinks, sinks[0].address


def test_each_rank_receives_its_own_slices_from_the_training_ranks(engine: VllmEngine, tmp_path: Path) -> None:
    model = save_random_model(tmp_path, CONFIG, seed=1)
    sinks, address = two_senders(weights_of(model), version=1)
    told = pull(engine, address, 1)
    assert isinstance(told, Pulled)
    assert told.version == 1
    for sink in sinks:
        assert len(sink.sent) == 2, "each rank of the engine is a receiver of each training rank"
        assert all(len(set(slices)) == len(slices) for slices in sink.sent.values())
    num_received = sum(volume(one.box) for sink in sinks for slices in sink.sent.values() for one in slices)
    assert num_received == sum(volume(piece.box) for holding in engine.layout() for piece in holding.pieces)
    assert gap(engine, model) < 1e-4
    for sink in sinks:
        sink.close()


def test_each_rank_reads_its_own_slices_out_of_shared_memory(engine: VllmEngine, tmp_path: Path) -> None:
    model = save_random_model(tmp_path / "model", CONFIG, seed=3)
    weights = weights_of(model)
    writer = create(tmp_path / "channel", layout_of(weights.items()))
    writer.publish(Version(2), weights.items())
    assert isinstance(pull(engine, writer.address, 2), Pulled)
    assert gap(engine, model) < 1e-4


def test_a_pull_whose_sender_is_gone_fails_and_leaves_the_weights_as_they_were(
    engine: VllmEngine, tmp_path: Path
) -> None:
    sinks, address = two_senders(weights_of(save_random_model(tmp_path, CONFIG, seed=2)), version=1)
    before = answer(engine)
    missing = pull(engine, address, 5)
    assert isinstance(missing, PullFailed)
    assert missing.reason == "version 5 is not published; the channel holds 1"
    sinks[1].close()
    gone = pull(engine, address, 1)
    assert isinstance(gone, PullFailed)
    assert "training rank 1" in gone.reason
    assert answer(engine).tokens.tolist() == before.tokens.tolist()
    sinks[0].close()
