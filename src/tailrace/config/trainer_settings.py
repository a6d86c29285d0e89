"""Settings of training: the optimizer, and its processes and memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from tailrace.config.section import Common, Section

Decay = Annotated[float, Field(ge=0, lt=1)]


class TrainerSettings(Section):
    """The optimizer, and the processes and memory of training."""

    learning_rate: Common[PositiveFloat] = 1e-6
    """Peak learning rate of AdamW."""
    weight_decay: Common[NonNegativeFloat] = 0.0
    """Decoupled weight decay."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """AdamW's moment decay rates."""
    warmup_steps: Common[NonNegativeInt] = 0
    """Number of steps in which the learning rate rises linearly from 0."""
    lr_schedule: Common[Literal["constant", "linear", "cosine"]] = "constant"
    """How the learning rate changes after warm-up."""
    max_grad_norm: Common[PositiveFloat] = 1.0
    """Gradients are scaled down to this norm if theirs is larger."""
    max_tokens_per_gpu: Common[PositiveInt | None] = None
    """Most tokens of a micro-batch. A prefix that several responses share counts fully once, and as a quarter for each
    further response. Default: on a GPU what its memory allows, at most 32768; on a CPU 16384."""
    gradient_checkpointing: Common[bool] = False
    """Recompute activations in the backward pass to save memory."""
    torch_compile: Common[bool] = False
    """Compile the model's layers with `torch.compile`. On a GPU steps are usually faster and need less memory, but the
    first one or two take many seconds longer."""
    replay_routing: bool = False
    """For a mixture of experts: send each response token to the experts that the rollout chose for it, instead of those
    that training would choose."""
    num_ranks: Common[PositiveInt] = 1
    """Processes that train together. Each holds a part of the model, its gradients and its optimizer state (FSDP2)."""
    num_replicas: Common[PositiveInt] = 1
    """Into how many replicas the ranks are divided; it must divide `num_ranks`. Each replica holds the whole model,
    divided among its ranks."""
    tensor_parallel_size: Common[PositiveInt] = 1
    """Ranks that compute the same samples, each with a part of every layer (Llama, Qwen2 and Qwen3, without LoRA).
    `num_ranks` must be a multiple of `num_replicas` times this number."""
    reduce_gradients: Literal["each", "last"] = "each"
    """With several ranks: add up gradients after each micro-batch, or once before the optimizer step. The second sends
    less and keeps a whole gradient of the model on every rank."""
    optimizer_device: Common[Literal["cpu"] | None] = None
    """Where AdamW keeps its state and takes its step: `cpu`, on the host, which leaves more memory of the GPU to
    everything else and takes longer. Default: on the device of the model."""
    gradients_device: Common[Literal["cpu"] | None] = None
    """Where gradients wait between two pieces of a step: `cpu`, in page-locked memory of the host, which leaves more
    memory of the GPU to everything else. Results stay the same. Default: on the device of the model."""
    reference_device: Common[Literal["cpu"] | None] = None
    """Where the layers of the reference model lie, which the KL term compares with: `cpu`, in page-locked memory of the
    host, from which each layer is copied to the GPU while others compute. Default: on the device of the model."""
    weight_channel: Common[Literal["auto", "shared-memory", "cuda-ipc", "ray", "collective"]] = "auto"
    """How weights get to the rollout: `shared-memory`; `cuda-ipc` from device to device, with two copies of the weights
    in device memory; `ray` through Ray's object store, once to each node; `collective` through torch.distributed (gloo,
    or NCCL between different GPUs), each rank sends what it holds. `auto`: with `runtime = "ray"` that one, else
    `cuda-ipc` if the run uses one GPU and its driver allows it, else `shared-memory`."""
    threads: Common[PositiveInt | None] = None
    """CPU threads of the training worker; default: the cores of this machine."""

    @property
    def num_shards(self) -> int:
        """Ranks that divide the samples of a replica among themselves."""
        return self.num_ranks // (self.num_replicas * self.tensor_parallel_size)

    @property
    def token_limit(self) -> int:
        """`max_tokens_per_gpu`, or its default on a CPU."""
        return self.max_tokens_per_gpu or 16384
