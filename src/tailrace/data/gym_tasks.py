"""Tasks of reasoning-gym as prompts: `TASK[?size=500&seed=0&...]`. The same text always gives the same rows.

Other parameters are those of the task's own configuration. Rows keep the `metadata` that the task's scorer needs; the
reward function `reasoning_gym` calls that scorer.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

import yaml

from tailrace.data.row import Row

SCORER = "reasoning_gym"
"""The reward function that belongs to these rows."""
_DEFAULTS = {"size": 500, "seed": 0}


def read_tasks(spec: str) -> Iterator[Row]:
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        raise ValueError(f"reasoning-gym:{spec} needs reasoning-gym: pip install 'tailrace[data]'") from error
    name, parameters = _parse(spec)
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.4)
        hint = f"; near it are {', '.join(near)}" if near else f"; there are {len(DATASETS)} others"
        raise ValueError(f"reasoning-gym has no task {name!r}{hint}")
    try:
        tasks = create_dataset(name, **parameters)
    except (TypeError, ValueError, AssertionError) as error:  # an unknown parameter, or a value out of its range
        raise ValueError(f"reasoning-gym:{spec}: {error}") from error
    return (_row(name, entry) for entry in tasks)


def _parse(spec: str) -> tuple[str, dict[str, Any]]:
    name, _, query = spec.partition("?")
    try:
        pairs = parse_qsl(query, strict_parsing=True, keep_blank_values=True) if query else []
    except ValueError:
        raise ValueError(f"reasoning-gym:{spec}: parameters are written ?size=500&seed=0, got {query!r}") from None
    return name, _DEFAULTS | {key: yaml.safe_load(value) for key, value in pairs}


def _row(name: str, entry: Row) -> Row:
    return {
        "prompt": entry["question"],
        "answer": entry["answer"],
        "metadata": entry["metadata"],
        "data_source": f"reasoning-gym:{name}",
    }
