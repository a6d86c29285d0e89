"""What is trained in the comparison with TRL: one plan, from which every system takes its settings.

Every system sees the same prompts in the same order, none of them twice. Each response is trained exactly once, in one
optimizer step per batch, by the weights that generated it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Self

from rollout_workloads import QUESTIONS, as_chat
from transformers import AutoTokenizer

REWARDS = {"tiny-arith": "arithmetic", "smollm2": "plain_words"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    model: str
    checkpoint: str
    reward: str
    """Name of a function in ``trl_reward.py``."""
    steps: int
    """Optimizer steps."""
    prompts: int
    """Prompts per step."""
    group_size: int
    max_response_length: int
    learning_rate: float
    max_running: int
    """Most responses generated at the same time, where a system has such a limit."""
    threads: int
    device: str = "cpu"
    """``cpu``: all in fp32. ``cuda``: fp32 weights, computation in bf16."""
    seed: int = 0
    temperature: float = 1.0
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.28

    @property
    def num_samples(self) -> int:
        return self.steps * self.prompts * self.group_size

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls(**json.loads((folder / "plan.json").read_text(encoding="utf-8")))

    def write(self, folder: Path, rows: list[dict[str, Any]] | None = None) -> None:
        """The plan and its prompts, for the processes that carry it out. ``rows``: other prompts than the model's."""
        (folder / "plan.json").write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")
        lines = (json.dumps(row) for row in rows or self._rows())
        (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _rows(self) -> list[dict[str, Any]]:
        wanted = self.steps * self.prompts
        source = _arithmetic_rows() if self.model == "tiny-arith" else _question_rows(Path(self.checkpoint))
        rows = [row for row, _ in zip(source, range(wanted), strict=False)]
        if len(rows) < wanted:
            raise SystemExit(f"{self.model} has {len(rows)} prompts, {self.steps} steps need {wanted}")
        return rows


def read_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]


def _arithmetic_rows() -> Iterator[dict[str, Any]]:
    path = resources.files("tailrace") / "assets" / "prompts" / "arith-train.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield {"prompt": row["prompt"], "answer": row["answer"]}


def _question_rows(checkpoint: Path) -> Iterator[dict[str, Any]]:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    for question in QUESTIONS:
        yield {"prompt": as_chat(tokenizer, question)}
