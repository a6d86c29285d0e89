"""Samplers of vLLM that also give the log-prob of a token before top-p, top-k and min-p.

vLLM returns the log-probs of the truncated distribution. A request whose sampling is truncated asks for one more column
(``logprobs=1``), which vLLM would fill with the likeliest token. Here it gets the sampled token's log-prob before
truncation. vLLM has two model runners with a sampler each. This file is imported in vLLM's worker process.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler


class BothLogprobsSampler(Sampler):
    """The sampler of model runner V1."""

    _untruncated: Tensor | None = None
    """Logits of this step after temperature and before truncation, if a request needs them."""

    def sample(self, logits: Tensor, sampling_metadata: SamplingMetadata, *args: Any) -> tuple[Tensor, Tensor | None]:
        self._untruncated = None
        if sampling_metadata.max_num_logprobs and not sampling_metadata.all_greedy:
            assert sampling_metadata.temperature is not None
            self._untruncated = self.apply_temperature(
                logits.clone(), sampling_metadata.temperature, sampling_metadata.all_random
            )
        sampled, logprobs = super().sample(logits, sampling_metadata, *args)
        return sampled, logprobs

    def gather_logprobs(self, logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> LogprobsTensors:
        """Gather the sampled tokens' log-probs. Ranks, which cost a pass over the vocabulary, are left out."""
        sampled = token_ids.unsqueeze(-1)
        columns = [logprobs.gather(-1, sampled)]
        if num_logprobs:
            before = columns[0] if self._untruncated is None else _sampled_logprobs(self._untruncated, sampled)
            columns += [before] * num_logprobs
        found = torch.cat(columns, dim=1)
        ids = sampled.to(torch.int32).expand(-1, found.shape[1])
        return LogprobsTensors(ids, found, torch.zeros_like(token_ids, dtype=torch.int32))


def _sampled_logprobs(logits: Tensor, sampled: Tensor) -> Tensor:
    return logits.gather(-1, sampled) - logits.logsumexp(dim=-1, keepdim=True)


def both_logprobs(sampler: Any) -> Any:
    """Return a sampler with the state of the given one that gives both log-probs."""
    kind = BothLogprobsSampler if isinstance(sampler, Sampler) else _for_runner_v2(type(sampler))
    made = object.__new__(kind)
    made.__dict__.update(sampler.__dict__)
    return made


def _for_runner_v2(base: type[Any]) -> type[Any]:
    """Return the sampler class of model runner V2, which is imported only where it runs: it needs Triton."""

    class BothLogprobsSamplerV2(base):
        def sample(self, logits: Tensor, expanded_idx_mapping: Tensor, *args: Any, **kwargs: Any) -> Any:
            self._untruncated, self._rows = logits, expanded_idx_mapping
            if self._wants_both:
                self._untruncated = logits.float()
                if self._untruncated is logits:
                    self._untruncated = logits.clone()
            return super().sample(logits, expanded_idx_mapping, *args, **kwargs)

        def __call__(self, logits: Tensor, input_batch: Any) -> SamplerOutput:
            rows = input_batch.idx_mapping_np
            self._wants_both = self.sampling_states.max_num_logprobs(rows) > 0
            output = super().__call__(logits, input_batch)
            if self._wants_both:
                self.sampling_states.apply_temperature(self._untruncated, self._rows, rows)
                sampled = output.sampled_token_ids.long()
                output.logprobs_tensors.logprobs[:, 1:] = _sampled_logprobs(self._untruncated, sampled)
            self._untruncated = None
            return output

    return BothLogprobsSamplerV2
