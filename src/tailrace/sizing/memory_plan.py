"""The memory of a run on one of its devices and on its hosts: what its settings and the model's shape say, before
anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailrace.config.judge_use import num_judge_models
from tailrace.config.memory_release import lends_colocated, may_park
from tailrace.config.parallel_layouts import settings_by_size
from tailrace.config.presets import ROLLOUT_ONLY
from tailrace.config.settings import Settings
from tailrace.config.variants import ESTIMATORS
from tailrace.sizing.channel_memory import ChannelMemory, channel_memory
from tailrace.sizing.device_plan import OWN, DevicePlan, demand_of, plan_devices
from tailrace.sizing.host_memory import GPUS_PER_HOST, HostLoad, host_memories
from tailrace.sizing.judge_memory import JudgeLoad, judge_memory
from tailrace.sizing.model_shape import ModelShape
from tailrace.sizing.parts import (
    MemoryPart,
    ProcessMemory,
    RolloutLoad,
    TrainingLoad,
    gradients_of_rank,
    moments,
    published_versions,
    reference_layers,
    rollout_parts,
    training_parts,
)

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    rollout: ProcessMemory
    training: ProcessMemory
    is_colocated: bool
    """Rollout frees its memory while training works, and training frees its temporary memory while rollout works."""
    is_apart: bool = False
    """Rollout and training have memories of their own: different GPUs."""
    besides: tuple[MemoryPart, ...] = ()
    """What lies in the same memory as the processes and belongs to none of them: on a CPU, the weight channel."""
    judge: ProcessMemory | None = None
    """A judge keeps its memory while rollout or training works."""
    has_judge_apart: bool = False
    """Judges have GPUs of their own."""
    hosts: tuple[ProcessMemory, ...] = ()
    """The main memory of the hosts, if the processes compute on GPUs."""

    @property
    def tables(self) -> tuple[ProcessMemory, ...]:
        """All that there is to show."""
        besides = (ProcessMemory(name="weight channel", count=1, parts=self.besides),) if self.besides else ()
        judge = () if self.judge is None else (self.judge,)
        return (self.rollout, self.training, *judge, *besides, *self.hosts)

    @property
    def num_bytes(self) -> int:
        """Most bytes in use at the same time, in the memory that is used most; that of hosts of GPUs does not count."""
        in_processes = max(self._in_processes, self._of_judges if self.has_judge_apart else 0)
        return in_processes + sum(part.num_bytes for part in self.besides)

    @property
    def beside_rollout(self) -> int:
        """Bytes of judges on a device of rollout."""
        return 0 if self.has_judge_apart else self._of_judges

    @property
    def _of_judges(self) -> int:
        return 0 if self.judge is None else self.judge.count * self.judge.num_bytes

    @property
    def _in_processes(self) -> int:
        rollout, training = (each.count * each.num_bytes for each in (self.rollout, self.training))
        rollout += self.beside_rollout
        if self.is_apart:
            return max(rollout, training)
        if not self.is_colocated:
            return rollout + training
        released = self.rollout.count * self.rollout.released_bytes + self.beside_rollout
        return max(rollout + self.training.count * self.training.resting_bytes, released + training)


def plan(
    shape: ModelShape, settings: Settings, *, is_cuda: bool, num_devices: int = 1, judge: JudgeLoad | None = None
) -> MemoryPlan:
    """The plan of these settings. Numbers that they leave open count as the defaults of a CPU.

    ``num_devices``: GPUs over which the run is spread. ``judge``: None: there is none, or its sizes are not known.
    """
    return MemoryPlan(
        rollout=_rollout_memory(shape, settings, is_cuda, num_devices),
        training=ProcessMemory(
            name="training",
            count=1 if is_cuda else settings.trainer.num_ranks,  # each rank has a GPU of its own
            parts=tuple(training_parts(shape, training_load(settings, is_cuda, num_devices))),
        ),
        is_colocated=settings.schedule.placement == "colocated",
        is_apart=is_cuda and settings.schedule.placement == "disaggregated",
        besides=() if is_cuda else tuple(_channel_on_cpu(shape, settings)),
        judge=None if judge is None else _judge(settings, judge, is_cuda=is_cuda, num_devices=num_devices),
        has_judge_apart=is_cuda and settings.reward.judge.placement == OWN,
        hosts=_hosts(shape, settings, num_devices, judge) if is_cuda else (),
    )


def _judge(settings: Settings, load: JudgeLoad, *, is_cuda: bool, num_devices: int) -> ProcessMemory | None:
    count = num_judge_models(settings)
    if is_cuda and count:
        judges = [own[0] for own in _devices(settings, num_devices).judges]
        count = max(judges.count(device) for device in judges)
    return judge_memory(load, count=count, is_cuda=is_cuda) if count else None


def _devices(settings: Settings, num_devices: int) -> DevicePlan:
    """The device plan, on as many GPUs as the run needs at least."""
    demand = demand_of(settings, trains=settings.schedule.preset != ROLLOUT_ONLY)
    return plan_devices(demand, [str(number) for number in range(max(num_devices, demand.least))])


def policy_devices(settings: Settings, num_devices: int) -> int:
    """How many of the run's GPUs rollout and training are spread over: those that are not a judge's own."""
    own = num_judge_models(settings) if settings.reward.judge.placement == OWN else 0
    return max(1, num_devices - own)


def gpus_per_host(settings: Settings) -> int | None:
    """GPUs that a host is assumed to have; None: all of them, since workers and channel are on one machine."""
    is_within_one = settings.trainer.weight_channel in ("shared-memory", "cuda-ipc")
    return None if settings.runtime != "ray" or is_within_one else GPUS_PER_HOST


def _hosts(
    shape: ModelShape, settings: Settings, num_devices: int, judge: JudgeLoad | None
) -> tuple[ProcessMemory, ...]:
    training = training_load(settings, True, num_devices)
    has_reference = training.reference_on_host and training.has_copied_reference
    load = HostLoad(
        channel=channel_memory(settings, is_cuda=True, num_devices=policy_devices(settings, num_devices)),
        itemsize=item_bytes(settings),
        num_publishing=training.num_shards,
        moments_bytes=moments(shape, training).num_bytes if training.steps_on_host else 0,
        gradients_bytes=gradients_of_rank(shape, training).num_bytes if training.gradients_on_host else 0,
        reference_bytes=reference_layers(shape) if has_reference else 0,
        offloaded_bytes=0 if judge is None else judge.host_bytes,
        parks=may_park(settings),
    )
    return host_memories(shape, load, _devices(settings, num_devices), gpus_per_host=gpus_per_host(settings))


def _channel_on_cpu(shape: ModelShape, settings: Settings) -> list[MemoryPart]:
    """The weight channel of a run whose processes all compute in the memory of one machine."""
    found = [published_versions(shape, item_bytes(settings))]
    if channel_memory(settings, is_cuda=False, num_devices=1).uses_rank_files:
        count, version = settings.rollout.num_instances, item_bytes(settings) * shape.num_parameters
        how = "files that hand each rank of an instance its part"
        found.append(MemoryPart(name="rank files", num_bytes=count * version, how=how, is_temporary=True))
    return found


def parts_per_device(settings: Settings, num_devices: int) -> int:
    """Parts of rollout instances on the fullest device, by the device plan. An instance has ``tensor_parallel_size``
    parts, each on a device of its own."""
    if settings.schedule.placement == "disaggregated":
        return 1
    num_places = max(1, policy_devices(settings, num_devices) // settings.rollout.tensor_parallel_size)
    return -(-settings.rollout.num_instances // num_places)


def item_bytes(settings: Settings) -> int:
    """Bytes of a number in the rollout's precision."""
    return _ITEM_BYTES[settings.model.dtype]


def max_length(settings: Settings) -> int:
    """Most tokens of a prompt with its response."""
    return settings.data.max_prompt_length + settings.rollout.max_response_length


def _rollout_memory(shape: ModelShape, settings: Settings, is_cuda: bool, num_devices: int) -> ProcessMemory:
    """Rollout on a device; with several parallel sizes, that of the size which takes most. Instances of the others may
    be parked there."""
    sized = [_one_size(shape, each, is_cuda, num_devices) for each in settings_by_size(settings)]
    fullest = max(sized, key=lambda each: each.count * each.num_bytes)
    if len(sized) == 1:
        return replace(fullest, name="rollout")
    if not is_cuda or not may_park(settings):
        return fullest
    parked = sum(each.count * each.released_bytes for each in sized if each is not fullest)
    part = MemoryPart(
        name="parked instances",
        num_bytes=-(-parked // fullest.count),
        how="what instances of other parallel sizes keep: contexts, graphs",
        is_never_released=True,
    )
    return replace(fullest, parts=(*fullest.parts, part))


def _one_size(shape: ModelShape, settings: Settings, is_cuda: bool, num_devices: int) -> ProcessMemory:
    rollout = settings.rollout
    return ProcessMemory(
        name=f"rollout, size {rollout.tensor_parallel_size}",
        count=parts_per_device(settings, num_devices) if is_cuda else rollout.num_instances,
        parts=tuple(_rollout(shape, settings, is_cuda, num_devices)),
    )


def _rollout(shape: ModelShape, settings: Settings, is_cuda: bool, num_devices: int) -> list[MemoryPart]:
    if settings.rollout.from_run is not None or settings.rollout.engine == "timed":  # there is no model
        return []
    return rollout_parts(shape, rollout_load(settings, is_cuda, num_devices))


def rollout_load(settings: Settings, is_cuda: bool, num_devices: int) -> RolloutLoad:
    rollout, channel = settings.rollout, _channel(settings, is_cuda, num_devices)
    samplings = (rollout, *settings.eval)
    return RolloutLoad(
        itemsize=item_bytes(settings),
        max_running=rollout.running_limit,
        kv_tokens=rollout.kv_tokens or max(max_length(settings), rollout.running_limit * max_length(settings) // 2),
        prefill_chunk=rollout.prefill_limit,
        is_truncated=any(s.top_k is not None or s.top_p < 1 or s.min_p > 0 for s in samplings),
        is_cuda=is_cuda,
        num_parts=rollout.tensor_parallel_size if is_cuda else 1,
        num_receivers=channel.num_receivers if channel else int(not is_cuda),
    )


def _channel(settings: Settings, is_cuda: bool, num_devices: int) -> ChannelMemory | None:
    """The weight channel, if its versions are in the memory of the processes: that of their GPUs."""
    num_devices = policy_devices(settings, num_devices)
    channel = channel_memory(settings, is_cuda=is_cuda, num_devices=num_devices)
    return channel if is_cuda and channel.is_on_devices else None


def training_load(settings: Settings, is_cuda: bool, num_devices: int) -> TrainingLoad:
    algorithm, is_autocast = settings.algorithm, is_cuda and settings.model.dtype == "bfloat16"
    on_host = settings.trainer.gradients_device == "cpu"
    channel = _channel(settings, is_cuda, num_devices)
    batch_tokens = settings.schedule.rollout_batch_size * settings.rollout.n_samples_per_prompt * max_length(settings)
    return TrainingLoad(
        # A longer response is a micro-batch of its own.
        micro_tokens=min(max(settings.trainer.token_limit, max_length(settings)), batch_tokens),
        published_itemsize=item_bytes(settings) if channel else 0,
        num_senders=channel.num_senders if channel else 1,
        is_autocast=is_autocast,
        is_fused=is_cuda,
        recomputes=settings.trainer.gradient_checkpointing,
        is_compiled=settings.trainer.torch_compile,
        has_reference=algorithm.kl_loss_coef > 0,
        has_critic=ESTIMATORS[algorithm.advantage_estimator].needs_critic,
        has_own_memory=is_cuda,
        keeps_gradients=not on_host and lends_colocated(settings),
        gradients_on_host=on_host,
        reference_on_host=settings.trainer.reference_device == "cpu",
        lora_rank=settings.model.lora_rank,
        num_shards=settings.trainer.num_ranks // settings.trainer.num_replicas,
        num_parts=settings.trainer.tensor_parallel_size,
        steps_on_host=is_cuda and settings.trainer.optimizer_device == "cpu",
        is_trained=settings.schedule.preset != ROLLOUT_ONLY,
    )
