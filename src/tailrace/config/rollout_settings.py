"""Settings of the rollout: how tokens are chosen, and how instances generate."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from tailrace.config.section import Common, Numbers, Section


class SamplingSettings(Section):
    """How tokens are chosen."""

    temperature: Common[NonNegativeFloat] = 1.0
    """Sampling temperature; 0: greedy decoding."""
    top_p: Common[float] = Field(default=1.0, gt=0, le=1)
    """Sample from the smallest set of most likely tokens whose probabilities add up to at least this."""
    top_k: Common[PositiveInt | None] = None
    """Sample from the k most likely tokens; default: from all tokens."""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Exclude tokens whose probability is below this fraction of the most likely token's."""
    stop: Common[tuple[str, ...]] = ()
    """Strings that end a response. The string stays in the response."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end a response, in addition to the model's own end-of-sequence tokens."""


class CostSettings(Section):
    """Cost model of an instance: a decode step of n responses with kv tokens in the KV cache takes
    `k1 * kv + max(k2, k3 * n) + k4` seconds. The `throughput` strategies start from these values and replace them by
    measured ones if they are wrong, unless `rollout.deterministic` is set. `tailrace profile` measures them."""

    k1: NonNegativeFloat = 0.0
    """Seconds per decode step for each token in the KV cache."""
    k2: NonNegativeFloat = 0.0
    """Seconds per decode step for reading the weights."""
    k3: NonNegativeFloat = 0.0
    """Seconds per decode step for each running response; counts if `k3 * n` is more than `k2`."""
    k4: PositiveFloat = 1.0
    """Fixed seconds per decode step. With the default values a step costs the same, however many responses run."""
    k5: PositiveFloat = 1.0
    """KV cache tokens reserved for each token of a response (an engine may reserve more than it uses)."""
    prefill_s: NonNegativeFloat = 0.0
    """Seconds to prefill one token."""


class RolloutSettings(SamplingSettings):
    """How responses are generated."""

    n_samples_per_prompt: Common[PositiveInt] = 8
    """Responses per prompt: the size of a group."""
    max_response_length: Common[PositiveInt] = 512
    """Most tokens of a response, also if it is interrupted and resumed."""
    num_instances: Common[PositiveInt] = 1
    """Number of rollout instances. Each is a process with its own engine."""
    engine: Common[Literal["native", "vllm", "auto", "timed"]] = "native"
    """Engine that generates responses. `auto`: `native` where it can do what the run needs, else `vllm`; the choice and
    its reason are printed. `timed`, for benchmarks of everything else: it makes up tokens and takes as long as
    `rollout.costs` says."""
    tensor_parallel_size: Common[PositiveInt] = 1
    """Number of devices that hold one instance's model together. With `parallel_sizes`: at the start of the run."""
    parallel_sizes: Numbers = ()
    """Numbers of devices between which `schedule.parallelism` may choose, such as [1, 2, 4], `tensor_parallel_size`
    among them. Default: only that one."""
    parallel_profile: Path | None = None
    """File with speed and KV cache of each of `parallel_sizes`, which `tailrace profile --parallel-sizes 1,2,4 --json
    FILE` writes. Default: every size has `rollout.costs`, and a KV cache in proportion to its devices."""
    park: Literal["auto", "always", "never"] = "auto"
    """What becomes of instances of another parallel size. `always`: they keep their processes and release their memory,
    weights included, so that they come back quickly with a pull. `never`: they end. `auto`: they wait if the engine can
    release its memory and the host has room for their processes."""
    return_routing: Literal["auto", "always", "never"] = "auto"
    """Whether responses of a mixture of experts keep the experts chosen for each token. Training compares them with its
    own (`mismatch/router_agreement`). `auto`: if the model is a mixture and the engine can."""
    from_run: Common[Path | None] = None
    """Use the saved responses of this run directory instead of generating new ones. The directory comes from
    `tailrace rollout`, or from a training run with `keep_rollouts`."""
    forced_lengths: Path | None = None
    """For benchmarks: training responses have the lengths in this file, wherever the model would end them; prompt i has
    those of row i modulo the rows. `tailrace rollout` writes such a file, and a JSON list of lists will do."""
    max_running: Common[PositiveInt | None] = None
    """Most responses an instance generates at the same time. Default: on a GPU as many as the schedule starts, at most
    1024 and no more than its memory allows; on a CPU 128."""
    kv_tokens: Common[PositiveInt | None] = None
    """Size of an instance's KV cache in tokens. When it is full, the response that started last is preempted: its KV
    cache is freed, and recomputed later. Default: on a GPU room for `max_running` responses of full length, or what its
    memory allows; on a CPU room for `max_running / 2`."""
    prefill_chunk: Common[PositiveInt | None] = None
    """Most tokens that an instance prefills in one step. Default: 8192 on a GPU, 512 on a CPU."""
    decoding: Literal["auto", "plain", "paged"] = "auto"
    """How the native engine decodes. `plain`: one token at a time in plain torch. `paged`: several tokens at a time,
    with the KV cache in pages, on a GPU as CUDA graphs of Triton kernels. `auto`: `paged` on a GPU if possible."""
    threads: Common[PositiveInt | None] = None
    """CPU threads of an instance; default: the cores of this machine."""
    deterministic: Common[bool] = False
    """Compute with fixed tensor shapes, so that results do not depend on the batch, on interruptions or on a resume.
    Slower."""
    progress_interval_s: PositiveFloat = 0.25
    """Least seconds between two reports of unfinished responses. Grows with load, up to 5 s: all instances together
    report at most 512 responses per second, in at most 16 reports."""
    costs: CostSettings = CostSettings()

    @property
    def running_limit(self) -> int:
        """`max_running`, or its default on a CPU."""
        return self.max_running or 128

    @property
    def prefill_limit(self) -> int:
        """`prefill_chunk`, or its default on a CPU."""
        return self.prefill_chunk or 512
