"""The memory of a run on one of its devices: what its settings and the model's shape say, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.config.presets import ROLLOUT_ONLY
from tailrace.config.settings import Settings
from tailrace.config.variants import ESTIMATORS
from tailrace.runtime.memory.parts import Part, RolloutLoad, TrainingLoad, rollout_parts, training_parts
from tailrace.store.model_shape import ModelShape

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    name: str
    count: int
    """Processes of this kind on the device."""
    parts: tuple[Part, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of one process while it works."""
        return sum(part.num_bytes for part in self.parts)

    @property
    def resting_bytes(self) -> int:
        """Bytes of one process between two steps."""
        return sum(part.num_bytes for part in self.parts if not part.is_temporary)

    @property
    def released_bytes(self) -> int:
        """Bytes of one process that has given its memory back."""
        return sum(part.num_bytes for part in self.parts if part.is_never_released)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    rollout: ProcessMemory
    training: ProcessMemory
    is_colocated: bool
    """Rollout frees its memory while training works, and training frees its temporary memory while rollout works."""
    is_apart: bool = False
    """Rollout and training have memories of their own: different GPUs."""

    @property
    def num_bytes(self) -> int:
        """Most bytes in use at the same time, in the memory that is used most."""
        rollout, training = (each.count * each.num_bytes for each in (self.rollout, self.training))
        if self.is_apart:
            return max(rollout, training)
        if not self.is_colocated:
            return rollout + training
        released = self.rollout.count * self.rollout.released_bytes
        return max(rollout + self.training.count * self.training.resting_bytes, released + training)


def plan(shape: ModelShape, settings: Settings, *, is_cuda: bool, num_devices: int = 1) -> MemoryPlan:
    """The plan of these settings. Numbers that they leave open count as the defaults of a CPU.

    ``num_devices``: GPUs over which rollout and training are spread.
    """
    return MemoryPlan(
        rollout=ProcessMemory(
            name="rollout",
            count=parts_per_device(settings, num_devices) if is_cuda else settings.rollout.num_instances,
            parts=tuple(_rollout(shape, settings, is_cuda, num_devices)),
        ),
        training=ProcessMemory(
            name="training",
            count=1 if is_cuda else settings.trainer.num_ranks,  # each rank has a GPU of its own
            parts=tuple(training_parts(shape, training_load(settings, is_cuda, num_devices))),
        ),
        is_colocated=settings.schedule.placement == "colocated",
        is_apart=is_cuda and settings.schedule.placement == "disaggregated",
    )


def parts_per_device(settings: Settings, num_devices: int) -> int:
    """Parts of rollout instances on the fullest device, by the device plan. An instance has ``tensor_parallel_size``
    parts, each on a device of its own."""
    if settings.schedule.placement == "disaggregated":
        return 1
    num_places = max(1, num_devices // settings.rollout.tensor_parallel_size)
    return -(-settings.rollout.num_instances // num_places)


def item_bytes(settings: Settings) -> int:
    """Bytes of a number in the rollout's precision."""
    return _ITEM_BYTES[settings.model.dtype]


def max_length(settings: Settings) -> int:
    """Most tokens of a prompt with its response."""
    return settings.data.max_prompt_length + settings.rollout.max_response_length


def _rollout(shape: ModelShape, settings: Settings, is_cuda: bool, num_devices: int) -> list[Part]:
    if settings.rollout.from_run is not None or settings.rollout.engine == "timed":  # there is no model
        return []
    return rollout_parts(shape, rollout_load(settings, is_cuda, num_devices))


def rollout_load(settings: Settings, is_cuda: bool, num_devices: int) -> RolloutLoad:
    rollout = settings.rollout
    samplings = (rollout, *settings.eval)
    return RolloutLoad(
        itemsize=item_bytes(settings),
        max_running=rollout.running_limit,
        kv_tokens=rollout.kv_tokens or max(max_length(settings), rollout.running_limit * max_length(settings) // 2),
        prefill_chunk=rollout.prefill_limit,
        is_truncated=any(s.top_k is not None or s.top_p < 1 or s.min_p > 0 for s in samplings),
        is_cuda=is_cuda,
        num_parts=rollout.tensor_parallel_size if is_cuda else 1,
        pulls_here=_holds_channel(settings, is_cuda, num_devices),
    )


def _holds_channel(settings: Settings, is_cuda: bool, num_devices: int) -> bool:
    """Whether published weights lie in the memory that is planned: in that of the GPU if they are published there.
    Several ranks gather them in the memory of the host, and between different GPUs they go through it."""
    if not is_cuda or settings.trainer.weight_channel == "collective":
        return True
    num_parts = settings.rollout.num_instances * settings.rollout.tensor_parallel_size
    is_apart = settings.schedule.placement == "disaggregated" or min(num_parts, num_devices) > 1
    return settings.trainer.weight_channel != "shared-memory" and settings.trainer.num_ranks == 1 and not is_apart


def training_load(settings: Settings, is_cuda: bool, num_devices: int) -> TrainingLoad:
    algorithm, is_autocast = settings.algorithm, is_cuda and settings.model.dtype == "bfloat16"
    batch_tokens = settings.schedule.rollout_batch_size * settings.rollout.n_samples_per_prompt * max_length(settings)
    return TrainingLoad(
        # A longer response is a micro-batch of its own.
        micro_tokens=min(max(settings.trainer.token_limit, max_length(settings)), batch_tokens),
        published_itemsize=item_bytes(settings) if _holds_channel(settings, is_cuda, num_devices) else 0,
        is_autocast=is_autocast,
        is_fused=is_cuda,
        recomputes=settings.trainer.gradient_checkpointing,
        is_compiled=settings.trainer.torch_compile,
        has_reference=algorithm.kl_loss_coef > 0,
        has_critic=ESTIMATORS[algorithm.advantage_estimator].needs_critic,
        lora_rank=settings.model.lora_rank,
        num_shards=settings.trainer.num_ranks // settings.trainer.num_replicas,
        num_parts=settings.trainer.tensor_parallel_size,
        steps_on_host=is_cuda and settings.trainer.optimizer_device == "cpu",
        is_trained=settings.schedule.preset != ROLLOUT_ONLY,
    )
