"""What the engine adds to vLLM's worker, one per device. Runs in vLLM's worker process.

vLLM mixes this class into its worker class (``worker_extension_cls``), and the engine calls the methods by name
(``collective_rpc``). Names must not be those of vLLM's own methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from vllm.config import set_current_vllm_config

from tailrace.engines.vllm.samplers import both_logprobs


class WorkerExtension:
    model_runner: Any
    vllm_config: Any
    rank: int

    def tailrace_prepare(self) -> None:
        self.model_runner.sampler = both_logprobs(self.model_runner.sampler)

    def tailrace_load(self, weights: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Replace all weights in place. ``weights``: one mapping per rank."""
        own = weights[self.rank]
        with set_current_vllm_config(self.vllm_config), torch.inference_mode():
            self.model_runner.reload_weights(weights_iterator=iter(own.items()))
