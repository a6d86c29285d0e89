"""The ``profile`` command: measure the engine that the settings describe, and fit its cost model."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.commands.train import Say
from tailrace.config.load import SettingsError
from tailrace.config.settings import Settings
from tailrace.data.models import resolve_model
from tailrace.engines.contract import Engine
from tailrace.engines.registry import ENGINES, choose_engine, with_chosen_engine
from tailrace.observe.costs.engine_profile import EngineProfile, between, fit, grid
from tailrace.runtime.gpus import card_defaults
from tailrace.runtime.inputs.sampling import sampling
from tailrace.runtime.inputs.sources import check_device, check_model
from tailrace.runtime.launchers.worker import OPENMP_PASSIVE_WAIT
from tailrace.store.model_config import vocabulary_size
from tailrace.workers.messages import RolloutInit


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    profile: EngineProfile
    setting: dict[str, Any]
    """Settings and machine of the measurement."""

    def to_dict(self) -> dict[str, Any]:
        return {"setting": self.setting, **self.profile.to_dict()}


def profile(settings: Settings, *, repeats: int, say: Say) -> Profiled:
    """Measure and fit; ``SettingsError`` if the engine cannot be made or has room for too few load points."""
    os.environ.update(OPENMP_PASSIVE_WAIT)  # as in a worker; must be set before torch is loaded
    try:
        model = measurable_model(settings)
        settings, _ = card_defaults.resolve(settings)
        init = profiled_init(settings, model)
        from tailrace.workers.rollout_worker import make_engine  # heavy: waits until the settings are known to be good

        return measure(settings, init, make_engine(init), repeats=repeats, say=say)
    except (OSError, ValueError) as error:
        raise SettingsError(str(error)) from error


def measurable_model(settings: Settings) -> Path:
    """Return the directory of the model; ``ValueError`` if the engine cannot run it, or cannot be measured."""
    check_device(settings.model.device)
    model = resolve_model(settings.model.path)
    engine = ENGINES[choose_engine(settings, model).engine].capabilities
    if not (engine.has_kv_cache and engine.streams_progress):
        raise SettingsError(f"the {engine.name} engine has no decode steps to measure; choose another engine")
    check_model(settings, model)
    return model


def profiled_init(settings: Settings, model: Path, *, may_release: bool = False) -> RolloutInit:
    """The first message to an instance that is measured."""
    return RolloutInit(
        checkpoint=model,
        model=settings.model,
        rollout=with_chosen_engine(settings, model),
        max_length=settings.data.max_prompt_length + settings.rollout.max_response_length,
        seed=settings.seed,
        may_release=may_release,
    )


def measure(settings: Settings, init: RolloutInit, engine: Engine, *, repeats: int, say: Say) -> Profiled:
    """Measure an engine that was started with this message."""
    import torch

    from tailrace.engines.load_points import LoadBench, num_steps, room
    from tailrace.workers.rollout_worker import device_of

    device, load_before = device_of(settings.model), os.getloadavg()[0]
    needed = room(engine.capabilities)
    longest = init.max_length - needed
    if longest < 2:
        raise ValueError(
            f"prompt and response together may have {init.max_length} tokens: give them more than {needed}"
        )
    kv_budget = engine.stats().kv_tokens_budget
    points = grid(max_running=settings.rollout.running_limit, longest=longest, kv_budget=kv_budget)
    others = between(points, kv_budget=kv_budget, seed=settings.seed)
    # One thread on the CPU waits for nothing but its core: its processor time is what it takes with a core to itself,
    # whatever else the machine does. Ranks compute in other processes.
    has_ranks = settings.rollout.tensor_parallel_size > 1
    is_alone = device.type == "cpu" and torch.get_num_threads() == 1 and not has_ranks
    bench = LoadBench(
        engine,
        vocab_size=vocabulary_size(init.checkpoint),
        sampling=sampling(settings.rollout, ()),
        seed=settings.seed,
        clock=time.process_time if is_alone else time.perf_counter,
    )
    measured = {m.point: m for m in bench.measure([*points, *others], repeats=repeats, say=say)}
    found = fit(*([measured[point] for point in part if point in measured] for part in (points, others)))
    return Profiled(
        profile=found,
        setting={
            "model": settings.model.path,
            "dtype": settings.model.dtype,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "threads": torch.get_num_threads(),
            "clock": "processor" if is_alone else "wall",
            "cores": os.cpu_count(),
            "max_running": settings.rollout.running_limit,
            "max_length": init.max_length,
            "kv_budget": kv_budget,
            "repeats": repeats,
            "steps_per_visit": num_steps(engine.capabilities),
            "tokens_per_step": engine.capabilities.tokens_per_step,
            "torch": torch.__version__,
            "load_average": [load_before, os.getloadavg()[0]],
        },
    )
