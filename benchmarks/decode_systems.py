"""The systems of the comparison of decoding on a GPU. Each holds one model and generates whole batches.

``generate`` is given prompts as token ids and returns the number of tokens of each response, in any order. All systems
sample at temperature 1 without truncation and return the log-prob of each token; none makes text of tokens.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from tailrace.core.ids import GroupId, ResponseId
from tailrace.engines.contract import Engine, Request, Sampling
from tailrace.engines.native.engine import NativeEngine
from tailrace.engines.native.limits import Decoding, EngineLimits

Prompts = Sequence[Sequence[int]]
PREFILL_CHUNK = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is generated for each prompt."""

    group_size: int = 1
    """Responses to each prompt."""
    max_tokens: int
    end_token: int | None = None
    """None: every response has exactly ``max_tokens`` tokens."""


class System(Protocol):
    def generate(self, prompts: Prompts, task: Task) -> list[int]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    checkpoint: Path
    device: str
    dtype: str
    decoding: str
    max_running: int
    max_length: int
    kv_tokens: int
    memory_share: float
    """Share of the GPU's memory that vLLM may take."""


class Contract:
    """An engine of tailrace, used as a run uses it: submit, then step until all responses are finished."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._num_calls = 0

    def generate(self, prompts: Prompts, task: Task) -> list[int]:
        self._num_calls += 1
        requests = [
            self._request(number, member, prompt, task)
            for number, prompt in enumerate(prompts)
            for member in range(task.group_size)
        ]
        self._engine.submit(requests)
        lengths: list[int] = []
        while len(lengths) < len(requests):
            lengths += [len(output.segment.tokens) for output in self._engine.step()]
        return lengths

    def _request(self, number: int, member: int, prompt: Sequence[int], task: Task) -> Request:
        return Request(
            response_id=ResponseId(GroupId("bench", self._num_calls, number), member),
            prompt=np.array(prompt, np.int32),
            prefix=np.empty(0, np.int32),
            budget=task.max_tokens,
            sampling=Sampling(stop_token_ids=() if task.end_token is None else (task.end_token,)),
            forced_length=task.max_tokens if task.end_token is None else None,
        )

    def close(self) -> None:
        del self._engine
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class Native(Contract):
    def __init__(self, setting: Setting) -> None:
        limits = EngineLimits(
            max_running=setting.max_running,
            max_length=setting.max_length,
            kv_tokens=setting.kv_tokens,
            prefill_chunk=PREFILL_CHUNK,
        )
        engine = NativeEngine(
            setting.checkpoint,
            seed=0,
            limits=limits,
            device=setting.device,
            dtype=getattr(torch, setting.dtype),
            decoding=Decoding(setting.decoding),
        )
        super().__init__(engine)


class VllmAdapter(Contract):
    """vLLM behind tailrace's engine contract."""

    def __init__(self, setting: Setting) -> None:
        from tailrace.engines.vllm.engine import VllmEngine
        from tailrace.engines.vllm.options import VllmOptions

        options = VllmOptions(
            max_running=setting.max_running,
            max_length=setting.max_length,
            prefill_chunk=PREFILL_CHUNK,
            gpu_memory_utilization=setting.memory_share,
            enforce_eager=setting.device == "cpu",
        )
        self._vllm = VllmEngine(
            setting.checkpoint, seed=0, options=options, device=setting.device, dtype=getattr(torch, setting.dtype)
        )
        super().__init__(self._vllm)

    def close(self) -> None:
        self._vllm.close()
        del self._vllm
        super().close()


class Vllm:
    def __init__(self, setting: Setting) -> None:
        from vllm import LLM

        self._llm: Any = LLM(
            model=str(setting.checkpoint),
            skip_tokenizer_init=True,
            dtype=setting.dtype,
            max_num_seqs=setting.max_running,
            max_model_len=setting.max_length,
            max_num_batched_tokens=max(PREFILL_CHUNK, setting.max_running),
            gpu_memory_utilization=setting.memory_share,
            enforce_eager=setting.device == "cpu",
            disable_log_stats=True,
        )

    def generate(self, prompts: Prompts, task: Task) -> list[int]:
        from vllm import SamplingParams

        sampling = SamplingParams(
            n=task.group_size,
            temperature=1.0,
            max_tokens=task.max_tokens,
            ignore_eos=task.end_token is None,
            stop_token_ids=None if task.end_token is None else [task.end_token],
            logprobs=0,  # of the sampled token alone
            detokenize=False,
        )
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        found = self._llm.generate(inputs, sampling, use_tqdm=False)
        responses = [response for each in found for response in each.outputs]
        if any(len(response.logprobs) != len(response.token_ids) for response in responses):
            raise RuntimeError("vLLM returned tokens without their log-probs")
        return [len(response.token_ids) for response in responses]

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        gc.collect()


SYSTEMS = {"native": Native, "vllm": Vllm, "vllm-adapter": VllmAdapter}
