from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tailrace.devices.cuda_driver import CudaError
from tailrace.weights.address import COLLECTIVE, SHARED_MEMORY
from tailrace.weights.channel import WeightSink
from tailrace.weights.sharding.layout import WeightLayout
from tailrace.weights.sinks import Choice, create_sink
from tailrace.weights.slots import shared_memory
from tailrace.weights.slots.channel_files import remove_channel
from tailrace.weights.slots.two_slots import layout_of
from weights.contents import weights

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def refuse(name: str, layout: WeightLayout, device: torch.device) -> WeightSink:
    raise CudaError("cuIpcGetMemHandle: no")


class Stage:
    def __init__(self, name: str) -> None:
        self.name, self.said, self.sinks = name, list[str](), list[WeightSink]()
        self.on_device: Callable[[str, WeightLayout, torch.device], WeightSink] = refuse

    def create(self, choice: Choice, device: torch.device) -> WeightSink:
        sink = create_sink(
            self.name,
            layout_of(weights(0)),
            choice=choice,
            device=device,
            say=self.said.append,
            create_on_device=self.on_device,
        )
        self.sinks.append(sink)
        return sink


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(f"test-{tmp_path.name}")
    yield stage
    for sink in stage.sinks:
        remove_channel(sink.address)


@pytest.mark.parametrize("choice", ["auto", "shared-memory"])
def test_without_a_gpu_weights_go_through_shared_memory(stage: Stage, choice: Choice) -> None:
    assert stage.create(choice, CPU).address.kind == SHARED_MEMORY
    assert stage.said == ["weights are published in shared memory"]


def test_shared_memory_can_be_chosen_on_a_gpu(stage: Stage) -> None:
    assert stage.create("shared-memory", CUDA).address.kind == SHARED_MEMORY


def test_device_to_device_is_refused_without_a_gpu(stage: Stage) -> None:
    with pytest.raises(ValueError, match=r"weight_channel = .cuda-ipc. needs a CUDA device, and the model is on cpu"):
        stage.create("cuda-ipc", CPU)


def test_a_process_that_trains_alone_sends_everything_through_torch_distributed(stage: Stage) -> None:
    sink = stage.create("collective", CPU)
    assert sink.address.kind == COLLECTIVE
    assert stage.said == ["weights are sent by this process through torch.distributed"]
    sink.close()


def test_on_a_gpu_auto_publishes_on_the_device(stage: Stage) -> None:
    stage.on_device = lambda name, layout, device: shared_memory.create_for(name, layout, print)  # any sink will do
    stage.create("auto", CUDA)
    assert stage.said == ["weights are published on the device (CUDA IPC)"]


def test_where_the_driver_refuses_auto_takes_shared_memory_and_says_why(stage: Stage) -> None:
    assert stage.create("auto", CUDA).address.kind == SHARED_MEMORY
    assert stage.said == [
        "weights are published in shared memory, because device memory cannot be exported: cuIpcGetMemHandle: no"
    ]


def test_where_the_driver_refuses_an_explicit_choice_is_an_error(stage: Stage) -> None:
    with pytest.raises(ValueError, match=r"weight_channel = .cuda-ipc. is not possible here: cuIpcGetMemHandle: no"):
        stage.create("cuda-ipc", CUDA)
