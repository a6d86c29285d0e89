"""The device memory of one rollout process and of the training process, part by part. Arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailrace.offload.turns import NUM_BUFFERS
from tailrace.sizing.activations import Activations, logits_bytes, micro_batch_bytes
from tailrace.sizing.channel_memory import CHANNEL_SLOTS
from tailrace.sizing.model_shape import ModelShape

CONTEXT_BYTES = 2**29
"""What a process takes before its first tensor: assumed, not measured. On CUDA: the driver's context, loaded kernels
and library workspaces. On a CPU: Python with torch and Transformers."""
BYTES_PER_TRUNCATED_LOGIT = 40
"""Top-k, top-p and min-p sort: fp32 scores, log-probs and their order, which is int64, several of each."""
_FP32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    name: str
    num_bytes: int
    how: str
    """How the number is computed, in a few words."""
    is_temporary: bool = False
    """Whether it exists only while the process works, and not between two steps."""
    is_never_released: bool = False
    """Whether a process keeps it that gives its memory back to others on the same device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    name: str
    count: int
    """Processes of this kind on the device, or hosts of this kind."""
    parts: tuple[MemoryPart, ...]

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
class RolloutLoad:
    itemsize: int
    """Bytes of a weight, and of a number in the KV cache."""
    max_running: int
    kv_tokens: int
    prefill_chunk: int
    is_truncated: bool = False
    """Whether sampling uses top-k, top-p or min-p."""
    is_cuda: bool = True
    num_parts: int = 1
    """Devices that hold the model of one instance together. The process is one of its parts."""
    num_receivers: int = 1
    """How many of them divide a pulled version among themselves, before it is copied; 0: it lies in another memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoad:
    micro_tokens: int
    """Tokens of the largest micro-batch."""
    published_itemsize: int
    """Bytes of a published number; 0: versions lie elsewhere, not in the memory of this process."""
    num_senders: int = 1
    """Ranks that divide published versions among themselves."""
    is_autocast: bool
    is_fused: bool = False
    """Whether a kernel reads log-probs off the logits: on CUDA."""
    recomputes: bool = False
    is_compiled: bool = False
    has_reference: bool = False
    has_critic: bool = False
    has_own_memory: bool = True
    """Whether the process computes in another memory than that of the host."""
    keeps_gradients: bool = False
    """Whether gradients may wait on the device beside a rollout that works there."""
    gradients_on_host: bool = False
    """Whether gradients wait in the memory of the host between pieces."""
    reference_on_host: bool = False
    """Whether the layers of the reference model lie in the memory of the host."""
    lora_rank: int = 0
    num_shards: int = 1
    """Ranks that divide weights, gradients and optimizer state among themselves."""
    num_parts: int = 1
    """How many of them divide the computation of each layer among themselves."""
    steps_on_host: bool = False
    """Whether AdamW's state lies in the memory of the host, and this is another memory than that."""
    is_trained: bool = True
    """False: the process only publishes the weights, for a run that does not train."""

    @property
    def has_copied_reference(self) -> bool:
        """Whether there is a copy of the starting model. With an adapter, the model without it is the reference."""
        return self.has_reference and not self.lora_rank


def rollout_parts(shape: ModelShape, load: RolloutLoad) -> list[MemoryPart]:
    """The memory of one part of an instance: usually all of it."""
    item, share = load.itemsize, "" if load.num_parts == 1 else f" / {load.num_parts} devices"
    # On a CPU the head of tied embeddings is a copy.
    head = 0 if load.is_cuda or not shape.has_tied_embeddings else shape.embedding_parameters
    weights = item * (shape.num_parameters + head) // load.num_parts
    divided = 3 * shape.mlp_width + shape.query_size + 2 * shape.kv_size
    per_token = item * (3 * shape.hidden_size + divided // load.num_parts)
    rows = item * shape.vocab_size + per_token
    if load.is_truncated:
        rows += BYTES_PER_TRUNCATED_LOGIT * shape.vocab_size
    decode = MemoryPart(
        name="decode",
        num_bytes=rows * load.max_running,
        how=f"{load.max_running:,} rows x {rows:,} bytes",
    )
    # Steps run once outside the graphs before they are captured, so their tensors exist in both places.
    graphs = replace(decode, name="graphs", how="the same tensors, in captured graphs", is_never_released=True)
    return [
        context(),
        MemoryPart(
            name="weights", num_bytes=weights, how=f"{_count(shape.num_parameters)} parameters x {item} bytes{share}"
        ),
        *([_pulled_copy(shape, load)] if load.num_receivers else []),
        MemoryPart(
            name="KV cache",
            num_bytes=kv_bytes(shape, load) * load.kv_tokens,
            how=f"{load.kv_tokens:,} tokens x {kv_bytes(shape, load):,} bytes",
        ),
        MemoryPart(
            name="prefill",
            num_bytes=per_token * load.prefill_chunk,
            how=f"{load.prefill_chunk:,} tokens x {per_token:,} bytes",
        ),
        decode,
        *([graphs] if load.is_cuda else []),
    ]


def kv_bytes(shape: ModelShape, load: RolloutLoad) -> int:
    """Bytes of one token in the KV cache of a part. A head is not divided."""
    heads = -(-shape.num_kv_heads // load.num_parts)
    return shape.kv_bytes(load.itemsize) * heads // shape.num_kv_heads


def _pulled_copy(shape: ModelShape, load: RolloutLoad) -> MemoryPart:
    how = "weights of a new version, until they are copied"
    if load.num_receivers < load.num_parts:
        how += "; of all ranks, on the first GPU of the instance"
    return MemoryPart(name="pulled copy", num_bytes=load.itemsize * shape.num_parameters // load.num_receivers, how=how)


def training_parts(shape: ModelShape, load: TrainingLoad) -> list[MemoryPart]:
    count = shape.num_parameters
    parts = [context(), _divided("weights", _FP32 * count, f"{_count(count)} parameters x 4 bytes", load)]
    if load.published_itemsize:
        parts.append(published_versions(shape, load.published_itemsize, num_senders=load.num_senders))
    return parts + (_learning_parts(shape, load) if load.is_trained else [])


def published_versions(shape: ModelShape, itemsize: int, *, num_senders: int = 1) -> MemoryPart:
    """Both versions of the weight channel; of several senders, the part that each of them holds."""
    num_bytes = CHANNEL_SLOTS * itemsize * shape.num_parameters
    how = f"{CHANNEL_SLOTS} x {_count(shape.num_parameters)} parameters x {itemsize} bytes"
    return _part_of("published versions", num_bytes, how, num_senders)


def moments(shape: ModelShape, load: TrainingLoad) -> MemoryPart:
    """AdamW's state of one rank, wherever it lies."""
    trained = shape.lora_parameters(load.lora_rank) if load.lora_rank else shape.num_parameters
    num_learners, learners = (2, " x 2 models") if load.has_critic else (1, "")
    how = f"{_count(trained)} parameters x 2 x 4 bytes{learners}"
    return _divided("AdamW", num_learners * 2 * _FP32 * trained, how, load)


def gradients_of_rank(shape: ModelShape, load: TrainingLoad) -> MemoryPart:
    """Gradients of one rank, wherever they wait."""
    trained = shape.lora_parameters(load.lora_rank) if load.lora_rank else shape.num_parameters
    num_learners, learners = (2, " x 2 models") if load.has_critic else (1, "")
    return _divided("gradients", num_learners * _FP32 * trained, f"{_count(trained)} x 4 bytes{learners}", load)


def _learning_parts(shape: ModelShape, load: TrainingLoad) -> list[MemoryPart]:
    count = shape.num_parameters
    trained = shape.lora_parameters(load.lora_rank) if load.lora_rank else count
    num_learners = 2 if load.has_critic else 1
    learners = " x 2 models" if load.has_critic else ""
    parts = []
    if load.has_critic:
        parts.append(_divided("critic", _FP32 * count, f"{_count(count)} parameters x 4 bytes", load))
    if load.has_copied_reference:
        parts.append(_reference(shape, load))
    if load.lora_rank:
        parts.append(
            _divided("adapter", num_learners * _FP32 * trained, f"{_count(trained)} x 4 bytes{learners}", load)
        )
    gradients = gradients_of_rank(shape, load)
    if load.gradients_on_host and not load.has_own_memory:
        parts.append(replace(gradients, name="waiting gradients", how=f"{gradients.how}, between two pieces"))
    state = moments(shape, load)
    if load.steps_on_host:
        there = f"{state.num_bytes / 2**30:.2f} GiB in the memory of the host: {state.how}"
        state = replace(state, num_bytes=0, how=there)
    parts += [
        state,
        replace(
            gradients, is_temporary=not load.keeps_gradients, how=gradients.how + _where_they_wait(gradients, load)
        ),
    ]
    if not load.lora_rank:
        parts.append(_embedding_gradients(shape))
    if load.num_shards > 1:
        parts.append(_gathered(shape, load))
    elif load.is_autocast:
        # Only matrices are cast. Autocast keeps the copies until the pass ends, autograd until the backward pass.
        parts.append(
            MemoryPart(
                name="bfloat16 weights",
                num_bytes=2 * shape.matrix_parameters,
                how=f"{_count(shape.matrix_parameters)} parameters x 2 bytes, cast once per micro-batch",
                is_temporary=True,
            )
        )
    return [*parts, _activations(shape, load)]


def _divided(name: str, num_bytes: int, how: str, load: TrainingLoad) -> MemoryPart:
    """A part that all ranks divide among themselves."""
    return _part_of(name, num_bytes, how, load.num_shards)


def _part_of(name: str, num_bytes: int, how: str, num_ranks: int) -> MemoryPart:
    if num_ranks == 1:
        return MemoryPart(name=name, num_bytes=num_bytes, how=how)
    return MemoryPart(name=name, num_bytes=-(-num_bytes // num_ranks), how=f"{how} / {num_ranks} ranks")


def _gathered(shape: ModelShape, load: TrainingLoad) -> MemoryPart:
    """Weights that a rank gathers: the embeddings, its part of the layer that computes and of the next one; and their
    gradients."""
    item = 2 if load.is_autocast else _FP32
    embeddings = shape.num_parameters - shape.num_layers * shape.layer_parameters
    gathered = embeddings + 2 * shape.layer_parameters // load.num_parts
    layers = "two layers" if load.num_parts == 1 else f"two layers / {load.num_parts}"
    return MemoryPart(
        name="gathered weights",
        num_bytes=2 * item * gathered,
        how=f"embeddings and {layers}, {_count(gathered)} parameters x {item} bytes, with gradients",
        is_temporary=True,
    )


def _where_they_wait(gradients: MemoryPart, load: TrainingLoad) -> str:
    if load.gradients_on_host and load.has_own_memory:
        return f"; between two pieces {gradients.num_bytes / 2**30:.2f} GiB in the memory of the host"
    return ", also between two pieces" if load.keeps_gradients else ""


def _embedding_gradients(shape: ModelShape) -> MemoryPart:
    """Gradients of the embedding that wait to be added: one from each end of the network."""
    return MemoryPart(
        name="embedding gradients",
        num_bytes=2 * _FP32 * shape.embedding_parameters,
        how=f"2 x {_count(shape.embedding_parameters)} x 4 bytes, while they are added up",
        is_temporary=True,
    )


def _reference(shape: ModelShape, load: TrainingLoad) -> MemoryPart:
    """The copy of the starting model. With layers on the host, each rank has all of it."""
    count = shape.num_parameters
    if not load.reference_on_host:
        return _divided("reference", _FP32 * count, f"{_count(count)} parameters x 4 bytes", load)
    if not load.has_own_memory:
        how = f"{_count(count)} parameters x 4 bytes, whole on every rank"
        return MemoryPart(name="reference", num_bytes=_FP32 * count, how=how)
    layer = shape.layer_parameters + 2 * shape.hidden_size
    on_device = _FP32 * (shape.outside_parameters + NUM_BUFFERS * layer)
    how = f"embeddings and {NUM_BUFFERS} layers; {reference_layers(shape) / 2**30:.2f} GiB in the memory of the host"
    return MemoryPart(name="reference", num_bytes=on_device, how=how)


def reference_layers(shape: ModelShape) -> int:
    """Bytes of the reference's layers in the memory of the host, for each rank."""
    return _FP32 * (shape.num_parameters - shape.outside_parameters)


def _activations(shape: ModelShape, load: TrainingLoad) -> MemoryPart:
    mine = shape.part_of_layers(load.num_parts)
    kept = Activations.of(
        mine,
        is_autocast=load.is_autocast,
        is_frozen=bool(load.lora_rank),
        is_compiled=load.is_compiled,
    )
    per_layer = kept.layer_input if load.recomputes else kept.layer
    num_scored = -(-load.micro_tokens // load.num_parts)
    logits = logits_bytes(shape, num_scored, is_autocast=load.is_autocast, is_fused=load.is_fused)
    return MemoryPart(
        name="micro-batch",
        num_bytes=micro_batch_bytes(kept, shape, load.micro_tokens, recomputes=load.recomputes, for_logits=logits),
        how=f"{load.micro_tokens:,} tokens x {shape.num_layers} layers x {per_layer:,} bytes;"
        f" logits {logits / 2**30:.1f} GiB",
        is_temporary=True,
    )


def context() -> MemoryPart:
    """What a process takes before its first tensor."""
    how = "Python and torch; on a GPU, the CUDA context"
    return MemoryPart(name="process", num_bytes=CONTEXT_BYTES, how=how, is_never_released=True)


def _count(number: int) -> str:
    return f"{number / 1e9:.2f}B" if number >= 1e9 else f"{number / 1e6:.1f}M"
