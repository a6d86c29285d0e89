"""Numbers that make no sense are refused with a sentence, before anything is decided."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cluster.small_cluster import cluster, group
from tailrace.cluster.ids import JobId, NodeGroupId, TenantId
from tailrace.cluster.job_spec import JobSpec, StateBytes
from tailrace.cluster.settings import ClusterRules, NodeGroup, Transfers


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train_devices": 0}, "train_devices must be a number from 1 on, got 0"),
        ({"rollout_devices": -50}, "rollout_devices must be a number from 0 on, got -50"),
        ({"steps": 0}, "steps must be a number from 1 on, got 0"),
    ],
)
def test_a_job_with_an_impossible_number_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        JobSpec(**({"id": JobId("a"), "train_devices": 8} | changes))


def test_sizes_of_states_and_groups_are_checked() -> None:
    with pytest.raises(ValueError, match="weights must be a number from 0 on, got -1"):
        StateBytes(weights=-1)
    with pytest.raises(ValueError, match="optimizer must be a number from 0 on, got nan"):
        StateBytes(optimizer=math.nan)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="devices must be a number from 1 on, got 0"):
        group("g", devices=0)
    with pytest.raises(ValueError, match="host_bytes must be a number from 0 on, got -1"):
        group("g", host_bytes=-1)
    with pytest.raises(ValueError, match="node group g needs at least one node"):
        NodeGroup(id=NodeGroupId("g"), nodes=(), devices=8)
    with pytest.raises(ValueError, match="bytes_per_s must be above 0 and finite, got 0"):
        Transfers(bytes_per_s=0)


def test_a_cluster_has_no_negative_number_of_rollout_devices() -> None:
    with pytest.raises(ValueError, match="rollout_devices must be a number from 0 on, got -1"):
        cluster(rollout_devices=-1)


NUMBERS = {
    "slot_s": 0.0, "max_duty": math.inf, "drift": -1.0, "max_jobs_per_group": 0, "drift_cycles": 0,
    "max_wait_share": math.nan, "hold_s": -1.0, "bucket_s": math.inf, "interference_weight": -0.1, "guard_s": -1.0,
    "min_gain": math.nan, "max_wait_s": -1.0, "max_queue_s": math.nan,
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_a_rule_with_an_impossible_number_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got {NUMBERS[name]!r}$"):
        ClusterRules(**{name: NUMBERS[name]})  # type: ignore[arg-type]


def test_weights_are_above_zero_and_limits_of_waiting_may_be_infinite() -> None:
    with pytest.raises(ValueError, match="the weight of tenant a must be above 0 and finite, got 0"):
        ClusterRules(tenants=((TenantId("a"), 0.0),))
    assert ClusterRules(max_wait_s=math.inf, max_queue_s=math.inf).max_queue_s == math.inf
