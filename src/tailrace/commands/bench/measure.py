"""Measures one model on this machine and puts every figure beside its bound."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tailrace.commands.bench import engine_speed
from tailrace.commands.bench.machine_speed import measure_machine
from tailrace.commands.bench.versions import versions
from tailrace.commands.bench.worker_speed import MeasuredBatch, measure_workers
from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.rollout_settings import RolloutSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.data.models import resolve_model
from tailrace.sizing import speed_bounds
from tailrace.sizing.model_shape import ModelShape
from tailrace.sizing.speed_bounds import Figure, MachineSpeed
from tailrace.workers.messages import POLICY, ModelInit, RolloutInit, TrainingInit
from tailrace.workers.rollout_worker import device_of, make_engine

Say = Callable[[str], None]
RANDOM_MODEL = "135M"
_LARGE = 10**9
"""Parameters from which on training recomputes activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLoad:
    """What is measured on a kind of device."""

    batches: tuple[int, ...]
    length: int
    num_prompts: int
    batch: MeasuredBatch
    repeats: int
    micro_tokens: int = 16384

    @property
    def max_length(self) -> int:
        return self.length + 256


_LOADS = {
    "cpu": BenchLoad(
        batches=(1, 8, 32),
        length=64,
        num_prompts=16,
        batch=MeasuredBatch(num_groups=4, group_size=4, prompt_length=16, response_length=112),
        repeats=3,
    ),
    "cuda": BenchLoad(
        batches=(1, 8, 32, 128, 256, 512),
        length=256,
        num_prompts=32,
        batch=MeasuredBatch(num_groups=16, group_size=8, prompt_length=64, response_length=448),
        repeats=3,
    ),
}
_QUICK_BATCHES = {"cpu": (1, 8), "cuda": (1, 32, 256)}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    setting: dict[str, Any]
    """Versions and machine."""
    speed: MachineSpeed
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "setting": self.setting,
            "bytes_per_s": self.speed.bytes_per_s,
            "flops": self.speed.flops,
            "figures": [figure.to_dict() for figure in self.figures],
            "notes": list(self.notes),
        }


def bench(name: str | None, *, device: str, is_quick: bool, say: Say) -> BenchReport:
    """Measure; ``ValueError`` or ``OSError`` if the model cannot be used. ``name``: None for a model that is there."""
    kind = device_of(ModelSettings(device=device))
    with tempfile.TemporaryDirectory() as folder:
        shown, path = _model(name, kind, Path(folder), say)
        model = ModelSettings(path=str(path), device=device, dtype="bfloat16" if kind.type == "cuda" else "float32")
        load = _LOADS[kind.type]
        if is_quick:
            load = replace(load, batches=_QUICK_BATCHES[kind.type], repeats=1)
        return _Bench(shown, path, model, load, kind, Path(folder) / "logs", say).run()


def _model(name: str | None, device: torch.device, folder: Path, say: Say) -> tuple[str, Path]:
    if name is not None or device.type == "cpu":
        name = name or "tiny-arith"
        return name, resolve_model(name)
    try:
        return "smollm2-135m", resolve_model("smollm2-135m")
    except (OSError, ValueError):
        from tailrace.data.random_models import save_random_model

        say(f"smollm2-135m is not installed; making a model of its shape ({RANDOM_MODEL}) with random weights")
        target = folder / "model"
        save_random_model(RANDOM_MODEL, target, dtype=torch.bfloat16, device=str(device))
        return f"{RANDOM_MODEL}, random weights", target


class _Bench:
    """One measurement of one model."""

    def __init__(
        self, shown: str, path: Path, model: ModelSettings, load: BenchLoad, device: torch.device, logs: Path, say: Say
    ) -> None:
        self._path, self._settings, self._load = path, model, load
        self._device, self._logs, self._say = device, logs, say
        self._dtype: torch.dtype = getattr(torch, model.dtype)
        self._shape = ModelShape.read(path)
        self._setting = versions(device) | {
            "model": shown,
            "dtype": model.dtype,
            "parameters": self._shape.num_parameters,
        }
        self._figures: list[Figure] = []
        self._notes: list[str] = []

    def run(self) -> BenchReport:
        self._say("measuring memory bandwidth and matrix products")
        speed = measure_machine(self._device, self._dtype)
        self._engine(speed)
        self._workers(speed)
        return BenchReport(setting=self._setting, speed=speed, figures=tuple(self._figures), notes=tuple(self._notes))

    def _engine(self, speed: MachineSpeed) -> None:
        load, shape, item = self._load, self._shape, self._dtype.itemsize
        self._say("starting the engine")
        engine = make_engine(self._rollout_init(max(load.batches)))
        for found in engine_speed.decode(
            engine, load.batches, length=load.length, vocab_size=shape.vocab_size, repeats=load.repeats
        ):
            batch = found.point.num_running
            allowed = speed_bounds.decode_bound(shape, speed, batch=batch, kv_tokens=found.held, itemsize=item)
            self._add(f"decode, batch {batch}", found.throughput, allowed)
        measured = engine_speed.prefill(
            engine,
            num_prompts=min(load.num_prompts, max(load.batches)),
            length=load.length,
            vocab_size=shape.vocab_size,
            device=self._device,
        )
        self._add("prefill", measured, speed_bounds.prefill_bound(shape, speed))
        engine.release()

    def _workers(self, speed: MachineSpeed) -> None:
        load, shape, item = self._load, self._shape, self._dtype.itemsize
        self._say("starting a training process and a rollout process")
        try:
            found = measure_workers(
                TrainingInit(models=(self._model_init(),)),
                self._rollout_init(load.batches[0]),
                load.batch,
                vocab_size=shape.vocab_size,
                rounds=load.repeats,
                logs=self._logs,
            )
        except ValueError as error:
            self._notes.append(f"training, publish and pull could not be measured: {error}")
            return
        self._add("training", load.batch.num_tokens / found.step_s, speed_bounds.training_bound(shape, speed))
        self._add("publish", found.publish_s, speed_bounds.publish_bound(shape, speed, itemsize=item), unit="s")
        self._add("pull", found.pull_s, speed_bounds.pull_bound(shape, speed, itemsize=item), unit="s")
        if found.max_memory_gb is not None:
            self._notes.append(f"training used at most {found.max_memory_gb:.1f} GiB of the GPU's memory")

    def _add(self, name: str, measured: float, allowed: float, unit: speed_bounds.Unit = "tokens/s") -> None:
        self._figures.append(Figure(name=name, unit=unit, measured=measured, allowed=allowed))
        self._say(f"{name}: {measured:,.3g} {unit}")

    def _rollout_init(self, max_running: int) -> RolloutInit:
        load = self._load
        rollout = RolloutSettings(
            max_running=max_running,
            kv_tokens=max_running * load.max_length,
            prefill_chunk=8192 if self._device.type == "cuda" else 512,
        )
        return RolloutInit(
            checkpoint=self._path, model=self._settings, rollout=rollout, max_length=load.max_length, seed=0
        )

    def _model_init(self) -> ModelInit:
        load = self._load
        recomputes = self._device.type == "cuda" and self._shape.num_parameters >= _LARGE
        return ModelInit(
            name=POLICY,
            model_path=self._path,
            checkpoint=None,
            model=self._settings,
            trainer=TrainerSettings(max_tokens_per_gpu=load.micro_tokens, gradient_checkpointing=recomputes),
            algorithm=AlgorithmSettings(),
            temperature=1.0,
            max_response_length=load.batch.response_length,
            max_steps=100,
            seed=0,
            channel_name=f"bench-{os.getpid()}",
        )
