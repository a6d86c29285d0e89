"""What the engine adds to vLLM's worker, one per device. With several devices it runs in processes of vLLM.

vLLM mixes this class into its worker class (``worker_extension_cls``), and the engine calls the methods by name
(``collective_rpc``). The names must not be those of vLLM's own methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from vllm.config import set_current_vllm_config

from tailrace.core.ids import Version
from tailrace.engines.vllm.experts import single_experts
from tailrace.engines.vllm.layout import Parts
from tailrace.engines.vllm.packing import pack_again
from tailrace.engines.vllm.rank_fetch import RankAnswer, RankFetcher
from tailrace.engines.vllm.router_capture import CannotCapture, RouterCapture, Rows, routed_layers
from tailrace.engines.vllm.samplers import both_logprobs
from tailrace.weights.address import ChannelAddress
from tailrace.weights.sharding.table import Holding


class WorkerExtension:
    model_runner: Any
    vllm_config: Any
    rank: int
    device: torch.device
    _tailrace_parts: Parts
    _tailrace_fetcher: RankFetcher
    _tailrace_capture: RouterCapture

    def tailrace_prepare(self, parts: Sequence[Parts], layout: Sequence[Holding]) -> None:
        """``parts``: for each rank, what ``tailrace_load`` will bring; ``layout``: the same as holdings."""
        self._tailrace_parts = parts[self.rank]
        self._tailrace_fetcher = RankFetcher(layout[self.rank], self.device)
        self.model_runner.sampler = both_logprobs(self.model_runner.sampler)

    def tailrace_load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace all weights in place with tensors of this process."""
        self._tailrace_reload(weights.items())

    def tailrace_load_files(self, files: Sequence[str]) -> None:
        """Replace all weights in place. ``files``: for each rank, the safetensors file of its parts."""
        with safe_open(files[self.rank], framework="pt") as file:
            self._tailrace_reload((name, file.get_tensor(name)) for name in self._tailrace_parts)

    def tailrace_fetch(self, channel: ChannelAddress, minimum_version: Version, is_again: bool) -> RankAnswer:
        """Fetch this rank's part of the newest version and keep it."""
        return self._tailrace_fetcher.fetch(channel, minimum_version, is_again=is_again)

    def tailrace_load_fetched(self) -> None:
        """Replace all weights in place with what was fetched."""
        self._tailrace_reload(self._tailrace_fetcher.take())

    def tailrace_drop_fetched(self) -> None:
        self._tailrace_fetcher.drop()

    def tailrace_capture_routing(self) -> tuple[tuple[int, int] | None, str]:
        """Begin to read the experts of tokens. Return layers and experts per token, or None and why it is not possible.

        All ranks route alike, so the first one is enough.
        """
        if self.rank:
            return None, "only the first rank reads experts"
        try:
            self._tailrace_capture = RouterCapture(self.model_runner)
        except CannotCapture as problem:
            return None, str(problem)
        return (self._tailrace_capture.num_layers, self._tailrace_capture.top_k), ""

    def tailrace_take_routing(self) -> dict[str, Rows]:
        """Return the experts of the steps since the last call, by request and position."""
        return {} if self.rank else self._tailrace_capture.take()

    def tailrace_routed_layers(self) -> tuple[list[int], int]:
        """Return the numbers of the layers with a router, and the experts per token."""
        layers = routed_layers(self.model_runner.get_model())
        return [int(layer.layer_id) for layer in layers], int(layers[0].router.top_k)

    def _tailrace_reload(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        # vLLM's own reload also packs the weights again where a platform's kernels need that (oneDNN on CPUs).
        with set_current_vllm_config(self.vllm_config), torch.inference_mode():
            self.model_runner.reload_weights(weights_iterator=self._tailrace_whole(weights))
            pack_again(self.model_runner.get_model())

    def _tailrace_whole(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield each part in a tensor of the whole parameter's shape, since vLLM takes its part out of the whole.

        The rest of that tensor is never written nor read, so on a CPU it takes no memory. On a GPU it does, until vLLM
        has its part.
        """
        for name, part in weights:
            shape, box = self._tailrace_parts[name]
            if tuple(part.shape) == shape:
                yield from single_experts(name, part)
                continue
            entire = torch.empty(shape, dtype=part.dtype, device=part.device)
            entire[tuple(slice(start, stop) for start, stop in box)] = part
            yield name, entire
