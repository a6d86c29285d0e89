"""What docs/ray.md says can be checked without a cluster."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

from tailrace.config.declared import leaves
from tailrace.config.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs" / "ray.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_kuberay_example_is_yaml_with_an_entrypoint_that_resumes() -> None:
    [job] = [yaml.safe_load(text) for text in blocks("yaml")]
    assert job["kind"] == "RayJob"
    assert "tailrace train" in job["spec"]["entrypoint"]
    assert {"headGroupSpec", "workerGroupSpecs"} <= set(job["spec"]["rayClusterSpec"])


def test_the_slurm_example_is_a_script_that_bash_can_read() -> None:
    [script] = blocks("bash")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_every_setting_on_the_page_exists() -> None:
    known = {name for name, _ in leaves(Settings)}
    named = set(re.findall(r"--((?:ray|rollout)\.[a-z_.]+)", PAGE)) | set(re.findall(r"`(ray\.[a-z_.]+)`", PAGE))
    assert named
    assert named <= known
