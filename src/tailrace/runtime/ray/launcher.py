"""Starts workers as Ray actors.

The kind of a worker is the part of its name before the first dash (`rollout-3` is a rollout worker). It decides what
Ray reserves for the worker, and which node it may run on. Reward workers, which run functions of the user
and programs of responses, have a process of their own below the actor's (`runtime/ray/kept.py`).
"""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

import ray

from tailrace.runtime.launchers.worker import Hear, Lose, WorkerHandle, WorkerSpec
from tailrace.runtime.ray import kept
from tailrace.runtime.ray.actor import INBOX, WEIGHTS, Surroundings, WorkerActor
from tailrace.runtime.ray.bundles import kind_of
from tailrace.runtime.ray.handle import RayWorker
from tailrace.runtime.ray.resources import PlacementGroups
from tailrace.weights.collective.own_address import on_loopback

_USER_CODE = ("reward", "tests")
"""Kinds of workers that run functions of the user, or programs of responses."""
_ACTOR = ray.remote(concurrency_groups={INBOX: 1, WEIGHTS: 4})(WorkerActor)


class RayLauncher:
    """Starts actors in the cluster that this process is connected to. Output is appended to a file per name.
    `is_local`: the cluster is this machine alone."""

    shares_files = False

    def __init__(
        self, logs: Path, placement: PlacementGroups, *, gathers_checkpoints: bool = False, is_local: bool = False
    ) -> None:
        self._logs, self._placement, self._gathers_checkpoints = logs, placement, gathers_checkpoints
        self._env = on_loopback() if is_local else {}

    def __call__(self, spec: WorkerSpec, *, hear: Hear, lose: Lose) -> WorkerHandle:
        self._logs.mkdir(parents=True, exist_ok=True)
        surroundings = Surroundings(
            env={**self._env, **spec.env},
            paths=tuple(filter(None, sys.path)),
            directory=os.getcwd(),
            controller_node=self._controller_node(spec.name),
        )
        # Never restarted by Ray: the core decides what a lost worker means.
        options = _ACTOR.options(
            # The name of a dead actor may not be free yet, so each has its own.
            name=f"{spec.name}-{uuid.uuid4().hex[:8]}",
            max_restarts=0,
            max_task_retries=0,
            **self._placement.options(spec.name),
        )
        actor = options.remote(spec.name, surroundings)
        if kind_of(spec.name) in _USER_CODE:
            spec = WorkerSpec(name=spec.name, entry=kept.ENTRY, init=spec)
        return RayWorker(actor, spec, log=self._logs / f"{spec.name}.log", hear=hear, lose=lose)

    def _controller_node(self, name: str) -> str | None:
        if not self._gathers_checkpoints or kind_of(name) != "training":
            return None
        return str(ray.get_runtime_context().get_node_id())
