from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from judge.judge_models import KINDS, random_model, reward_model
from offload.late_copies import LateCopies
from tailrace.offload.layer_offload import LayerOffload, decoder_layers, offload_layers

TOKENS = torch.arange(40).view(2, 20) % 64


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def model_of(kind: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return reward_model().to(dtype) if kind == "reward" else random_model(kind, dtype)


@torch.no_grad()
def states(model: PreTrainedModel) -> Tensor:
    return model.base_model(input_ids=TOKENS, use_cache=False).last_hidden_state


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [*KINDS, "reward"])
def test_a_pass_gives_the_same_bits_with_any_number_of_resident_layers(kind: str, dtype: torch.dtype) -> None:
    expected = states(model_of(kind, dtype))
    for num_resident in range(7):
        model = model_of(kind, dtype)
        offload_layers(model, torch.device("cpu"), num_resident=num_resident)
        assert torch.equal(states(model), expected)


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("is_overlapped", [True, False])
def test_the_same_bits_come_through_two_buffers(is_late: bool, is_overlapped: bool) -> None:
    expected = states(model_of("llama"))
    for num_resident in range(7):
        model, copies = model_of("llama"), LateCopies(is_late=is_late)
        LayerOffload(decoder_layers(model), copies, num_resident=num_resident, is_overlapped=is_overlapped)
        for _ in range(3):
            assert torch.equal(states(model), expected)


def test_a_layer_that_is_called_several_times_is_copied_once() -> None:
    model, copies = model_of("llama"), LateCopies(is_late=True)
    layers = decoder_layers(model)
    LayerOffload(layers, copies, num_resident=0)
    places = torch.arange(20)[None]
    embedded = model.get_input_embeddings()(TOKENS)
    rotary = model.base_model.rotary_emb(embedded, places)
    with torch.no_grad():
        for layer in layers:
            for _ in range(4):
                layer(embedded, position_embeddings=rotary)
    assert copies.num_copies == 6 + 1, "each layer once, and the first one for the next pass"


def test_buffers_and_resident_weights_are_taken_once() -> None:
    model, copies = model_of("llama"), LateCopies(is_late=True)
    offload = LayerOffload(decoder_layers(model), copies, num_resident=2)
    addresses = [buffer.data_ptr() for buffer in copies.buffers]
    for _ in range(3):
        states(model)
    assert [buffer.data_ptr() for buffer in copies.buffers] == addresses
    assert len(copies.on_device) == 2
    assert {len(buffer) for buffer in copies.buffers} == {offload.layer_bytes}


def test_the_number_of_resident_layers_can_change_between_passes() -> None:
    expected = states(model_of("qwen2"))
    model = model_of("qwen2")
    offload = LayerOffload(decoder_layers(model), LateCopies(is_late=True), num_resident=6)
    for num_resident in (3, 0, 5, 6, 1, 1):
        offload.keep(num_resident)
        assert offload.num_resident == num_resident
        assert torch.equal(states(model), expected)
        offload.keep(num_resident, is_overlapped=False)
        assert torch.equal(states(model), expected)


def test_the_state_of_the_model_can_be_read_at_any_time() -> None:
    expected = {name: weight.clone() for name, weight in model_of("qwen3").state_dict().items()}
    model = model_of("qwen3")
    LayerOffload(decoder_layers(model), LateCopies(is_late=True), num_resident=1)
    for _ in range(2):
        found = model.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], weight) for name, weight in expected.items())
        states(model)


def test_a_closed_offload_leaves_the_model_as_it_was() -> None:
    expected = states(model_of("llama"))
    model, copies = model_of("llama"), LateCopies(is_late=True)
    LayerOffload(decoder_layers(model), copies, num_resident=0).close()
    num_copies = copies.num_copies
    assert torch.equal(states(model), expected)
    assert (copies.num_copies, copies.buffers) == (num_copies, [])


def test_on_a_cpu_nothing_is_copied_when_layers_come_and_go() -> None:
    model = model_of("llama")
    offload = offload_layers(model, torch.device("cpu"), num_resident=6)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    for num_resident in (0, 3, 6):
        offload.keep(num_resident)
        states(model)
        assert [parameter.data_ptr() for parameter in model.parameters()] == addresses


def test_layers_that_share_weights_are_refused() -> None:
    layers = decoder_layers(model_of("llama"))
    with pytest.raises(ValueError, match="share weights"):
        LayerOffload([*layers, layers[0]], LateCopies(is_late=True), num_resident=0)


def test_a_model_without_a_list_of_layers_is_refused() -> None:
    model = model_of("llama")
    model.config.num_hidden_layers = 7
    with pytest.raises(ValueError, match="LlamaForCausalLM has no list of 7 layers"):
        decoder_layers(model)
