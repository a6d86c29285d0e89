"""The Dockerfile and the constraints for CUDA machines, as far as they can be checked without either."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from tailrace.engines.vllm.versions import check_version

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions(kind: str) -> list[str]:
    """What follows a keyword in the Dockerfile, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE)
    return re.findall(rf"^{kind} (.+)$", text.replace("\\\n", ""), re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / name).read_text(), re.MULTILINE)
    return {package.lower().replace("_", "-"): version for package, version in found}


def extras_of(text: str) -> set[str]:
    return {extra for named in re.findall(r"'\.\[([\w,]+)\]'", text) for extra in named.split(",")}


def unmet(found: dict[str, str], requirements: list[str]) -> list[str]:
    """Requirements that the pins contradict."""
    parsed = [Requirement(text) for text in requirements]
    return [
        str(each) for each in parsed if each.name.lower() in found and found[each.name.lower()] not in each.specifier
    ]


def copied() -> Iterator[str]:
    for line in instructions("COPY"):
        yield from line.split()[:-1]


def test_the_constraints_for_cuda_fit_what_the_package_asks_for() -> None:
    found, extras = pins("constraints-cuda.txt"), PROJECT["optional-dependencies"]
    named = extras_of((ROOT / "constraints-cuda.txt").read_text())
    assert {"torch", "vllm", "ray"} <= named <= set(extras)
    asked = [*PROJECT["dependencies"], *(text for extra in named for text in extras[extra])]
    assert unmet(found, asked) == []
    assert {"torch", "vllm", "ray", "triton", "transformers", "numpy"} <= set(found)
    check_version(found["vllm"])


def test_a_contradiction_would_be_found() -> None:
    assert unmet({"vllm": "0.41.0", "ray": "2.60.0"}, ["vllm>=0.26,<0.33", "ray>=2.60"]) == ["vllm<0.33,>=0.26"]


def test_what_both_files_of_constraints_pin_differs_only_where_vllm_wants_it() -> None:
    cuda, cpu = pins("constraints-cuda.txt"), pins("constraints.txt")
    assert {name for name in cuda.keys() & cpu.keys() if cuda[name] != cpu[name]} == {"torch", "numpy"}


def test_the_dockerfile_copies_files_that_exist_and_are_not_ignored() -> None:
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert set(copied()) == set(allowed)
    assert all((ROOT / name).exists() for name in allowed)


def test_the_commands_of_the_dockerfile_can_be_read_and_name_what_exists() -> None:
    commands = instructions("RUN")
    assert commands
    for command in commands:
        subprocess.run(["bash", "-n"], input=command, text=True, check=True)
    assert extras_of("\n".join(commands)) <= set(PROJECT["optional-dependencies"])
    assert set(re.findall(r"--constraint (\S+)", "\n".join(commands))) == {"constraints-cuda.txt"}


def test_what_the_dockerfile_copies_is_enough_to_build_the_package(tmp_path: Path) -> None:
    for name in copied():
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(tmp_path)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("tailrace-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert "tailrace/assets/recipes/qwen-gpu.toml" in archive.namelist()


@pytest.mark.parametrize("target", ["gpu", "ray"])
def test_both_images_are_built_by_a_line_that_the_file_gives(target: str) -> None:
    assert f"docker build --target {target} " in DOCKERFILE
    assert re.search(rf"^FROM .* AS {target}$", DOCKERFILE, re.MULTILINE)


def test_the_page_about_clusters_names_these_files_and_the_same_ray() -> None:
    page = (ROOT / "docs" / "ray.md").read_text()
    assert "(../Dockerfile)" in page
    assert "(../constraints-cuda.txt)" in page
    [job] = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert yaml.safe_load(job)["spec"]["rayClusterSpec"]["rayVersion"] == pins("constraints-cuda.txt")["ray"]
