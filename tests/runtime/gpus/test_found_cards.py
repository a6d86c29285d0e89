"""The cards that a run finds on this machine. Only torch's look at the driver is made up."""

from __future__ import annotations

import os
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st

from tailrace.config.load import check
from tailrace.config.settings import Settings
from tailrace.runtime.gpus import card_defaults
from tailrace.runtime.gpus.found_cards import find_card
from tailrace.runtime.gpus.found_devices import visible_devices
from tailrace.sizing.card import Card
from tailrace.sizing.device_plan import TooFewDevices, demand_of, plan_devices
from tailrace.sizing.fitting import fit
from tailrace.sizing.known_shapes import known_shape
from tailrace.sizing.memory_plan import parts_per_device, plan

GIB = 2**30
QWEN = known_shape("Qwen/Qwen2.5-7B")

FAKE_TORCH = """
import os
from types import SimpleNamespace

free = {free!r}
seen = os.environ["CUDA_VISIBLE_DEVICES"].split(",")

def mem_get_info(device):
    if free[seen[device]] is None:
        raise RuntimeError("out of memory")
    return free[seen[device]] * 2**30, 80 * 2**30

cuda = SimpleNamespace(
    device_count=lambda: len(seen), mem_get_info=mem_get_info, get_device_name=lambda device: "a card"
)
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes up a machine: the free GiB of each GPU by its name; None if it has no room for a process."""

    def make(free: dict[str, int | None]) -> None:
        (tmp_path / "torch.py").write_text(FAKE_TORCH.format(free=free))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(free))

    return make


def found(given: Settings) -> Card | None:
    names = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    return find_card(given, find=lambda device: visible_devices(device, count=len(names), environ=os.environ))


def settings(num_ranks: int = 1, num_instances: int = 1, size: int = 1, **sections: Any) -> Settings:
    rollout = {"engine": "vllm", "num_instances": num_instances, "tensor_parallel_size": size}
    model = {"path": "Qwen/Qwen2.5-7B", "device": "cuda", "dtype": "bfloat16"} | sections.pop("model", {})
    return check({"model": model, "rollout": rollout, "trainer": {"num_ranks": num_ranks}, **sections})


def test_a_run_on_eight_gpus_is_planned_for_eight(machine: Any) -> None:
    machine({str(number): 79 for number in range(8)})
    given = settings(num_ranks=8, num_instances=8)
    card = found(given)
    assert card == Card(name="a card", total=80 * GIB, free=79 * GIB, count=8)
    fitted, line = card_defaults.resolve(given, find=found, shape=QWEN)
    assert fitted == fit(card.available, QWEN, given, num_devices=8).applied(given)
    alone = fit(card.available, QWEN, given).applied(given)
    assert fitted.rollout.kv_tokens > 4 * alone.rollout.kv_tokens, "eight instances on one card would starve"
    assert line is not None
    assert line.startswith("8 x a card, 79 GiB free on each: ")


def test_only_gpus_that_the_plan_uses_count_and_the_fullest_decides(machine: Any) -> None:
    machine({"3": 70, "1": 50, "GPU-c": None, "0": 60})
    assert found(settings()) == Card(name="a card", total=80 * GIB, free=70 * GIB)
    assert found(settings(num_instances=2)) == Card(name="a card", total=80 * GIB, free=50 * GIB, count=2)
    assert found(settings(model={"device": "cuda:3"})) == Card(name="a card", total=80 * GIB, free=60 * GIB)
    assert found(settings(num_ranks=3)) is None, "a GPU that cannot be asked is not guessed at"


def test_a_run_that_waits_for_more_gpus_is_planned_for_as_many_as_it_needs(machine: Any) -> None:
    machine({"0": 79, "1": 78})
    card = found(settings(num_ranks=64, num_instances=64, runtime="ray"))
    assert card == Card(name="a card", total=80 * GIB, free=78 * GIB, count=64)


def test_without_gpus_there_is_no_card() -> None:
    assert find_card(settings(model={"device": "auto"}), find=lambda device: ()) is None


@given_any(
    num_instances=st.integers(1, 9),
    size=st.integers(1, 4),
    num_ranks=st.integers(1, 4),
    num_devices=st.integers(1, 20),
)
def test_the_memory_plan_counts_what_the_device_plan_puts_on_one_gpu(
    num_instances: int, size: int, num_ranks: int, num_devices: int
) -> None:
    given = settings(num_ranks, num_instances, size)
    try:
        devices = plan_devices(demand_of(given, trains=True), [str(number) for number in range(num_devices)])
    except TooFewDevices:
        return
    fullest = max(Counter(chain(*devices.rollout)).values())
    assert parts_per_device(given, num_devices) == parts_per_device(given, len(devices.devices)) == fullest


def test_weights_that_go_to_other_gpus_are_published_in_the_memory_of_the_host() -> None:
    given = settings(num_instances=2)
    for num_devices, is_here in ((1, True), (2, False)):
        memory = plan(QWEN, given, is_cuda=True, num_devices=num_devices)
        assert any(part.name == "published versions" for part in memory.training.parts) == is_here
