"""The systems under comparison. Each is built once and then asked for all responses of a workload, again and again.

Every system keeps at most ``batch`` responses in flight, samples at temperature 1 without truncation and stops at the
end token or at ``max_new_tokens``. ``forced`` turns stopping off: every response has exactly ``max_new_tokens``.
``run`` returns the number of useful tokens: generated ones up to and including the stop token, padding not counted.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from rollout_workloads import Workload
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from tailrace.core.ids import GroupId, ResponseId
from tailrace.engines.contract import Request, Sampling
from tailrace.engines.native.engine import NativeEngine
from tailrace.engines.native.limits import EngineLimits


class System(Protocol):
    def run(self, workload: Workload, *, forced: bool) -> int: ...


class Native:
    """The native engine, as a rollout worker uses it."""

    def __init__(self, workload: Workload, batch: int, seed: int = 0) -> None:
        max_length = max(map(len, workload.prompts)) + workload.max_new_tokens
        limits = EngineLimits(max_running=batch, max_length=max_length, kv_tokens=batch * max_length)
        self._engine = NativeEngine(workload.checkpoint, seed=seed, limits=limits)
        self._num_runs = 0

    def run(self, workload: Workload, *, forced: bool) -> int:
        self._num_runs += 1
        self._engine.submit(
            [
                self._request(workload, index, member, forced)
                for index in range(len(workload.prompts))
                for member in range(workload.group_size)
            ]
        )
        num_tokens = 0
        while self._engine.stats().num_running + self._engine.stats().num_waiting:
            num_tokens += sum(len(output.segment.tokens) for output in self._engine.step())
        return num_tokens

    def _request(self, workload: Workload, index: int, member: int, forced: bool) -> Request:
        return Request(
            response_id=ResponseId(GroupId("bench", self._num_runs, index), member),
            prompt=np.array(workload.prompts[index], np.int32),
            prefix=np.empty(0, np.int32),
            budget=workload.max_new_tokens,
            sampling=Sampling(stop_token_ids=workload.end_tokens),
            forced_length=workload.max_new_tokens if forced else None,
        )


def load_transformers(workload: Workload) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(workload.checkpoint, dtype=torch.float32).eval()


class Generate:
    """Transformers ``generate``: batches of ``batch`` responses, each as slow as its longest one."""

    def __init__(self, workload: Workload, batch: int) -> None:
        self._model = load_transformers(workload)
        self._batch = batch

    def run(self, workload: Workload, *, forced: bool) -> int:
        prompts = [prompt for prompt in workload.prompts for _ in range(workload.group_size)]
        batches = [prompts[start : start + self._batch] for start in range(0, len(prompts), self._batch)]
        return sum(self._run_batch(batch, workload, forced) for batch in batches)

    def _run_batch(self, prompts: list[list[int]], workload: Workload, forced: bool) -> int:
        width = max(map(len, prompts))
        tokens = torch.full((len(prompts), width), workload.pad_token)
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(prompts):
            tokens[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        config = _generation_config(workload, forced)
        output = self._model.generate(tokens, attention_mask=mask, generation_config=config)[:, width:]
        if forced:
            return output.numel()
        is_end = torch.isin(output, torch.tensor(workload.end_tokens))
        lengths = torch.where(is_end.any(1), is_end.int().argmax(1) + 1, output.shape[1])
        return int(lengths.sum())


class GenerateBatch:
    """Transformers continuous batching, with room for everything it may want to hold at once."""

    def __init__(self, workload: Workload, batch: int, page_size: int = 32) -> None:
        self._model = load_transformers(workload)
        longest = max(map(len, workload.prompts)) + workload.max_new_tokens
        pages_each = -(-longest // page_size) + 1
        self._settings = ContinuousBatchingConfig(
            page_size=page_size,
            num_blocks=2 * batch * pages_each,
            max_batch_tokens=max(512, 2 * batch),
            max_requests_per_batch=batch,
        )

    def run(self, workload: Workload, *, forced: bool) -> int:
        prompts = [prompt for prompt in workload.prompts for _ in range(workload.group_size)]
        results = self._model.generate_batch(
            inputs=prompts,
            generation_config=_generation_config(workload, forced),
            continuous_batching_config=self._settings,
            progress_bar=False,
        )
        if len(results) != len(prompts):
            raise RuntimeError(f"generate_batch returned {len(results)} of {len(prompts)} responses")
        return sum(len(result.generated_tokens) for result in results.values())


def _generation_config(workload: Workload, forced: bool) -> GenerationConfig:
    return GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=workload.max_new_tokens,
        eos_token_id=-1 if forced else list(workload.end_tokens),
        pad_token_id=workload.pad_token,
    )


SYSTEMS = {"native": Native, "transformers_generate": Generate, "transformers_generate_batch": GenerateBatch}
