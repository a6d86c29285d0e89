"""Small cluster scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailrace.sim.cluster.scenario import ClusterScenario
from tailrace.sim.cluster.scenario_file import check_cluster

SMALL: dict[str, Any] = {
    "name": "small",
    "source": "test",
    "cluster": {
        "source": "test",
        "groups": {"a": 1},
        "devices_per_node": 4,
        "transfer_gb_per_s": 10.0,
        "disk_gb_per_s": 1.0,
    },
    "rules": {"source": "test", "compare": ["spread"]},
    "models": [
        {
            "source": "test",
            "name": "a",
            "train_devices": 8,
            "rollout_devices": 4,
            "cycle_s": 100.0,
            "logprob_s": 10.0,
            "update_s": 20.0,
            "sync_s": 10.0,
            "weights_gb": 10.0,
            "optimizer_gb": 20.0,
        }
    ],
    "jobs": {"source": "test", "count": 1, "mix": {"a": 1}, "min_steps": 3, "max_steps": 3, "overlap": "serial"},
}
"""One node group, one job: 60 s of rollout and 40 s of training per step, and 3 s for loading its state."""


def small(faults: tuple[dict[str, Any], ...] = (), **sections: dict[str, Any]) -> ClusterScenario:
    """Return the small scenario with some keys of its sections changed. ``models`` changes its one model."""
    data = {key: value.copy() if isinstance(value, dict) else value for key, value in SMALL.items()}
    data["models"] = [data["models"][0] | sections.pop("models", {})]
    for name, changes in sections.items():
        data[name] |= changes
    return check_cluster(data | {"faults": list(faults)}, Path("small.toml"))
