"""Where weights lie while they are published and pulled, by the weight channel: sums by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.commands.preflight.dry_run import dry_run_on
from tailrace.commands.preflight.planned import shape_of
from tailrace.config.load import check, load
from tailrace.config.settings import Settings
from tailrace.sizing.card import parse_card
from tailrace.sizing.memory_plan import MemoryPlan, plan
from tailrace.sizing.parts import ProcessMemory

GIB = 2**30
BIG, SMALL = shape_of("Qwen/Qwen3-32B"), shape_of("Qwen/Qwen2.5-7B-Instruct")
BIG_VERSION, SMALL_VERSION = 2 * BIG.num_parameters, 2 * SMALL.num_parameters
"""Bytes of a version in bfloat16."""
PROCESS = GIB // 2


def on_64_gpus(channel: str, **changes: str) -> MemoryPlan:
    """Four hosts train with 32 ranks, two replicas of 16; on each of four hosts are two instances of four GPUs."""
    settings = load("qwen-64gpu", {"trainer.weight_channel": channel, **changes})
    return plan(BIG, settings, is_cuda=True, num_devices=64)


def on_8_gpus(channel: str, **changes: str) -> MemoryPlan:
    """One host; each of eight GPUs has a rank and an instance."""
    return plan(SMALL, load("qwen-8gpu", {"trainer.weight_channel": channel, **changes}), is_cuda=True, num_devices=8)


def parts_of(memory: ProcessMemory) -> dict[str, int]:
    return {part.name: part.num_bytes for part in memory.parts}


def hosts(memory: MemoryPlan) -> dict[str, dict[str, int]]:
    return {f"{host.name} x {host.count}": parts_of(host) for host in memory.hosts}


def test_ranks_that_send_their_own_parts_divide_the_published_versions() -> None:
    """Each rank of the first replica holds a sixteenth of two versions; with one replica, a thirty-second."""
    two, one = (on_64_gpus("collective", **{"trainer.num_replicas": number}) for number in ("2", "1"))
    assert parts_of(two.training)["published versions"] == pytest.approx(2 * BIG_VERSION / 16, abs=16)
    assert parts_of(one.training)["published versions"] / GIB == pytest.approx(3.8, abs=0.05)
    assert two.training.num_bytes < 79 * GIB


@pytest.mark.parametrize("changes", [{"model.lora_rank": "8"}, {"trainer.tensor_parallel_size": "2"}])
def test_where_one_rank_sends_everything_it_holds_both_versions_whole(changes: dict[str, str]) -> None:
    memory = on_64_gpus("collective", **changes)
    assert parts_of(memory.training)["published versions"] == 2 * BIG_VERSION


def test_each_rank_of_an_instance_receives_its_own_part_on_its_own_gpu() -> None:
    memory = on_64_gpus("collective")
    assert parts_of(memory.rollout)["pulled copy"] == BIG_VERSION // 4
    assert hosts(memory) == {
        "hosts 0 to 3 x 4": {"processes": 8 * PROCESS},
        "hosts 4 to 7 x 4": {"processes": (2 + 2 * 4) * PROCESS},
    }


def test_ranks_that_read_the_channel_file_need_no_files_of_their_own() -> None:
    [host] = on_64_gpus("shared-memory").hosts
    assert parts_of(host) == {
        "processes": (32 + 8 + 8 * 4) * PROCESS,
        "published versions": 2 * BIG_VERSION,
        "gathered weights": 16 * 2 * BIG.embedding_parameters,  # the ranks of the first replica
        "pulled copies": 8 * BIG_VERSION,
    }


def test_hosts_of_a_cluster_hold_what_goes_through_the_object_store() -> None:
    gathered = 8 * 2 * BIG.embedding_parameters  # eight ranks gather the largest parameter at the same time
    rollout = {
        "processes": (2 + 2 * 4) * PROCESS,  # two instances, with four processes of vLLM each
        "object store": BIG_VERSION,
        "pulled copies": 2 * BIG_VERSION,
        "rank files": 2 * BIG_VERSION,
    }
    for channel in ("auto", "ray"):
        memory = on_64_gpus(channel)
        assert hosts(memory) == {
            "host 0 x 1": {
                "processes": 8 * PROCESS,
                "published versions": 2 * BIG_VERSION,
                "gathered weights": gathered,
            },
            "host 1 x 1": {"processes": 8 * PROCESS, "gathered weights": gathered},
            "hosts 2 to 3 x 2": {"processes": 8 * PROCESS},
            "hosts 4 to 7 x 4": rollout,
        }
        assert "published versions" not in parts_of(memory.training)
        assert "pulled copy" not in parts_of(memory.rollout)


def test_one_host_holds_the_channel_file_and_a_pulled_copy_of_each_instance() -> None:
    for channel in ("auto", "shared-memory"):
        [host] = on_8_gpus(channel).hosts
        assert parts_of(host) == {
            "processes": (8 + 8) * PROCESS,
            "published versions": 2 * SMALL_VERSION,
            "gathered weights": 8 * 2 * SMALL.embedding_parameters,
            "pulled copies": 8 * SMALL_VERSION,
        }


def test_the_optimizer_of_all_ranks_of_a_host_is_counted_there() -> None:
    [host] = on_8_gpus("auto", **{"trainer.optimizer_device": "cpu"}).hosts
    assert parts_of(host)["AdamW"] == pytest.approx(8 * SMALL.num_parameters, rel=1e-6)  # eight eighths of 8 bytes


def test_gradients_and_references_of_all_ranks_of_a_host_are_counted_there() -> None:
    waiting, on_host = {"trainer.gradients_device": "cpu"}, {"trainer.reference_device": "cpu"}
    found = parts_of(on_8_gpus("auto", **waiting, **on_host, **{"algorithm.kl_loss_coef": "0.1"}).hosts[0])
    assert found["gradients"] == pytest.approx(4 * SMALL.num_parameters, rel=1e-6)  # eight eighths of 4 bytes
    layers = 28 * (2 * 3584 * (3584 + 512) + 3 * 3584 * 18944 + 2 * 3584)
    assert found["reference"] == 8 * 4 * layers  # each rank has all of them
    with_critic = parts_of(on_8_gpus("auto", **waiting, **{"algorithm.advantage_estimator": "gae"}).hosts[0])
    assert with_critic["gradients"] == pytest.approx(8 * SMALL.num_parameters, rel=1e-6)
    assert "reference" not in with_critic


def test_hosts_that_do_not_train_hold_neither_gradients_nor_references() -> None:
    asked = {"trainer.gradients_device": "cpu", "trainer.reference_device": "cpu", "algorithm.kl_loss_coef": "0.1"}
    layers = 4 * (BIG.num_parameters - 2 * BIG.embedding_parameters - BIG.hidden_size)
    found = hosts(on_64_gpus("auto", **asked))
    assert len(found) == 4
    for name, parts in found.items():
        if name == "hosts 4 to 7 x 4":
            assert not {"gradients", "reference"} & parts.keys()
            continue
        assert parts["gradients"] == pytest.approx(8 * 4 * BIG.num_parameters / 16, rel=1e-6)  # of sixteen shards
        assert parts["reference"] == 8 * layers


def test_a_run_on_one_gpu_has_its_versions_there_and_nothing_of_them_on_the_host() -> None:
    given = check({"model": {"path": "Qwen/Qwen2.5-7B-Instruct", "device": "cuda", "dtype": "bfloat16"}})
    memory = plan(SMALL, given, is_cuda=True)
    assert parts_of(memory.training)["published versions"] == 2 * SMALL_VERSION
    assert parts_of(memory.rollout)["pulled copy"] == SMALL_VERSION
    assert hosts(memory) == {"host x 1": {"processes": 2 * PROCESS}}
    on_ray = plan(SMALL, given.model_copy(update={"runtime": "ray"}), is_cuda=True)
    assert "published versions" not in parts_of(on_ray.training), "Ray's store is in the memory of the host"


def test_on_a_cpu_the_channel_is_counted_once_however_many_ranks_there_are() -> None:
    def planned(**trainer: Any) -> MemoryPlan:
        return plan(SMALL, check({"model": {"device": "cpu"}, "trainer": trainer}), is_cuda=False)

    for memory in (planned(num_ranks=1), planned(num_ranks=2), planned(num_ranks=2, weight_channel="collective")):
        [published] = memory.besides
        assert (published.name, published.num_bytes) == ("published versions", 2 * 4 * SMALL.num_parameters)
        assert published.name not in parts_of(memory.training)
        assert memory.hosts == ()


def said(settings: Settings, card: str) -> str:
    lines: list[str] = []
    dry_run_on(parse_card(card), settings, lines.append)
    return "\n".join(lines)


def test_a_plan_for_a_cluster_says_what_it_assumes_about_hosts() -> None:
    text = said(load("qwen-64gpu", {}), "64xH100")
    assert "GiB on the fullest, if each has 8 GPUs" in text
    assert "hosts 4 to 7 x 4" in text
    within_one = said(load("qwen-64gpu", {"trainer.weight_channel": "shared-memory"}), "64xH100")
    assert "trainer.weight_channel 'shared-memory' works only if all 64 GPUs are in one machine" in within_one
