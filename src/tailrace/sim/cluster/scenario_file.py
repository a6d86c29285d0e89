"""Reads cluster scenarios. An unknown key is an error that names the nearest known one."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tailrace.config.complaints import read_table, sentences
from tailrace.config.declared import leaves
from tailrace.sim.cluster.scenario import ClusterScenario
from tailrace.sim.cluster.scenario_sections import ClusterFaultSection, ModelSection, RuleOverrides
from tailrace.sim.scenario import ScenarioError
from tailrace.sim.section import ScenarioSection

_LISTS: dict[str, type[ScenarioSection]] = {
    "models": ModelSection,
    "faults": ClusterFaultSection,
    "rules.variants": RuleOverrides,
}


def is_cluster_scenario(path: Path) -> bool:
    """Return whether the file has a ``[cluster]`` section."""
    return "cluster" in read_table(path, "scenario")


def load_cluster_scenario(path: Path) -> ClusterScenario:
    return check_cluster(read_table(path, "scenario"), path)


def check_cluster(data: dict[str, Any], path: Path) -> ClusterScenario:
    """Return the scenario; ``ScenarioError`` if it is wrong. ``path``: its file. Traces are relative to its folder."""
    models = data.get("models")
    if isinstance(models, list):
        data = data | {"models": [_with_trace(model, path) for model in models]}
    try:
        return ClusterScenario.model_validate(data)
    except ValidationError as error:
        found = sentences(error, data, lambda name: f"unknown key {name}{_nearest(name)}")
        raise ScenarioError("\n".join(f"{path}: {sentence.removeprefix(': ')}" for sentence in found)) from None


def _with_trace(model: Any, path: Path) -> Any:
    """Return the model with the steps of its trace file."""
    if not isinstance(model, dict) or not isinstance(model.get("trace"), str):
        return model
    file = path.parent / model["trace"]
    try:
        steps = json.loads(file.read_text())["steps"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ScenarioError(f"{path}: models.trace: cannot read steps from {file}: {error!r}") from None
    return {**model, "steps": steps}


def _nearest(name: str) -> str:
    """Return a hint at the known key that looks most like this one. Numbers and names in a key's path are left out."""
    known = {leaf.rsplit(".", 1)[-1]: leaf for leaf, _ in leaves(ClusterScenario)}
    for prefix, section in _LISTS.items():
        if name.startswith(f"{prefix}."):
            known = {key: f"{prefix}.{key}" for key in section.model_fields}
    if "." not in name:
        known = {key: key for key in ClusterScenario.model_fields}
    close = difflib.get_close_matches(name.rsplit(".", 1)[-1], known, n=1, cutoff=0.6)
    return f"; did you mean {known[close[0]]}?" if close else ""
