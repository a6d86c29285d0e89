"""Imports the function of a worker by its name, such as ``tailrace.workers.training_worker:serve``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tailrace.workers.link import Link


def load_entry(entry: str) -> Callable[[Link, Any], None]:
    """Import the function. Only the worker calls this, never the controller, because it may import large packages."""
    module, _, name = entry.partition(":")
    function: Callable[[Link, Any], None] = getattr(importlib.import_module(module), name)
    return function
