"""Print the versions of tailrace and of what it runs on."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version


def configure(parser: argparse.ArgumentParser) -> None:
    pass


def run(options: argparse.Namespace) -> int:
    print(f"tailrace {installed_version('tailrace')}")
    print(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in ("torch", "transformers", "safetensors", "tokenizers", "pydantic", "numpy", "math-verify"):
        try:
            print(f"{package} {installed_version(package)}")
        except PackageNotFoundError:
            print(f"{package} is not installed")
    return 0
