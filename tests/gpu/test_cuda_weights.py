"""The weight channel on one GPU: the suite of all channels, and what only real processes on a device can show."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.register_assert_rewrite("weights.channel_suite", "weights.slot_suite")

from end_to_end import launch  # noqa: E402
from end_to_end.test_lost_trainer import GIVEN, kill_in_step  # noqa: E402
from tailrace.core.ids import Version  # noqa: E402
from tailrace.weights.address import CUDA_IPC  # noqa: E402
from tailrace.weights.sharding.layout import WeightLayout  # noqa: E402
from tailrace.weights.sinks import create_sink  # noqa: E402
from tailrace.weights.slots.device_checksum import checksums  # noqa: E402
from tailrace.weights.slots.two_slots import layout_of  # noqa: E402
from weights.channel_kinds import SlotKind, make_kind, make_writer  # noqa: E402
from weights.channel_suite import *  # noqa: E402, F403
from weights.slot_suite import *  # noqa: E402, F403
from weights.writer_process import endless_writer, pull_until_lost, with_tests_on_path  # noqa: E402

PULLER = Path(__file__).parents[1] / "weights" / "timed_reader.py"
CUDA = torch.device("cuda", 0)


@pytest.fixture
def kind() -> SlotKind:
    return make_kind("cuda")


def small_language_model() -> dict[str, torch.Tensor]:
    """Random bits in the shapes of a model with 135 million parameters, in bfloat16."""
    shapes = {"embed": (49152, 576), "norm": (576,)}
    for layer in range(30):
        shapes |= {f"{layer}.{name}": (576, 576) for name in ("q", "o")}
        shapes |= {f"{layer}.{name}": (192, 576) for name in ("k", "v")}
        shapes |= {f"{layer}.{name}": (1536, 576) for name in ("gate", "up")}
        shapes |= {f"{layer}.down": (576, 1536), f"{layer}.norm1": (576,), f"{layer}.norm2": (576,)}
    bits = {name: torch.randint(-(2**15), 2**15, shape, dtype=torch.int16) for name, shape in shapes.items()}
    return {name: tensor.view(torch.bfloat16).to(CUDA) for name, tensor in bits.items()}


def test_another_process_pulls_bit_for_bit_and_both_take_milliseconds(kind: SlotKind, tmp_path: Path) -> None:
    weights = small_language_model()
    writer = make_writer(kind, tmp_path / "w", layout_of(weights.items()))
    publish_s = []
    for version in range(6):
        start = time.monotonic()
        writer.publish(Version(version), weights.items())
        publish_s.append(time.monotonic() - start)
    torch.save({name: tensor.cpu() for name, tensor in weights.items()}, tmp_path / "expected.pt")
    command = [sys.executable, str(PULLER), "cuda", str(tmp_path / "w"), str(tmp_path / "expected.pt")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=with_tests_on_path())
    found = json.loads(done.stdout)
    print(f"\npublish ms {[round(1e3 * s, 2) for s in publish_s]}, pull ms {found['pull_ms']}")
    assert found["version"] == 5
    assert found["is_equal"]
    assert min(publish_s[1:]) < 0.05
    assert min(found["pull_ms"][1:]) < 50


def test_killed_writers_end_in_whole_versions_or_failed_pulls_and_successors_are_found(tmp_path: Path) -> None:
    rng, reader, num_whole, num_corrupt = random.Random(0), None, 0, 0
    for number in range(10):
        with endless_writer("cuda", tmp_path / "w", first=100 * number) as process:
            reader = reader or make_kind("cuda").reader(tmp_path / "w")
            pulls = pull_until_lost(reader, process, rng)
        num_whole, num_corrupt = num_whole + pulls.num_whole, num_corrupt + pulls.num_corrupt
    print(f"\n{num_whole} whole pulls, {num_corrupt} pulls that met memory being removed")
    assert num_whole > 0


def test_the_checksums_of_a_gpu_are_those_of_a_cpu() -> None:
    layout = WeightLayout.build([("a", (3000, 1001), "bfloat16"), ("b", (), "float32"), ("c", (70000,), "float32")])
    block = torch.randint(0, 256, (layout.num_bytes,), dtype=torch.uint8)
    assert torch.equal(checksums(block.to(CUDA), layout).cpu(), checksums(block, layout))


def test_memory_of_a_closed_channel_is_given_back(kind: SlotKind, tmp_path: Path) -> None:
    layout = WeightLayout.build([("a", (64 << 20,), "float32")])
    make_writer(kind, tmp_path / "w", layout).close()
    before = torch.cuda.mem_get_info(CUDA)[0]
    writer = make_writer(kind, tmp_path / "w", layout)
    assert before - torch.cuda.mem_get_info(CUDA)[0] >= 2 * layout.num_bytes
    writer.close()
    assert before - torch.cuda.mem_get_info(CUDA)[0] < layout.num_bytes


def test_auto_publishes_on_the_device(tmp_path: Path) -> None:
    said: list[str] = []
    layout = WeightLayout.build([("a", (8,), "float32")])
    sink = create_sink(f"test-{tmp_path.name}", layout, choice="auto", device=CUDA, say=said.append)
    assert sink.address.kind == CUDA_IPC
    assert said == ["weights are published on the device (CUDA IPC)"]
    sink.close()


@pytest.mark.parametrize("channel", ["cuda-ipc", "shared-memory"])
def test_a_whole_run_says_which_channel_it_uses(tmp_path: Path, channel: str) -> None:
    output = tmp_path / "run"
    result = launch.train(output, model__device="cuda", trainer__weight_channel=channel)
    assert result.returncode == 0, result.stdout + result.stderr
    log = "".join(path.read_text() for path in (output / "logs").glob("training*"))
    expected = "on the device (CUDA IPC)" if channel == "cuda-ipc" else "in shared memory"
    assert f"weights are published {expected}" in log


def test_a_run_whose_trainer_is_killed_pulls_from_the_channel_of_the_next_one(tmp_path: Path) -> None:
    output = tmp_path / "run"
    process = launch.start(output, **GIVEN, model__device="cuda", trainer__weight_channel="cuda-ipc")
    try:
        for version in (0, 3):
            kill_in_step(process, output, version)
        assert process.wait(timeout=400) == 0
    finally:
        process.kill()
        process.wait()
