"""A rollout engine that generates with vLLM, in the caller's process.

The engine drives vLLM's core directly (``InprocClient``): requests go in as token ids, and each step returns the new
tokens with their log-probs. vLLM's own front end (tokenizer, text, one object per token) is not used. With several
devices vLLM starts a process for each (``worker_extension.py`` says what runs there).

No KV of an old version survives a pull: ``pull`` resets vLLM's prefix cache, and fails if that is not possible.
``engines/contract.py`` says what the engine promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutput, FinishReason
from vllm.v1.engine.core_client import InprocClient
from vllm.v1.executor import Executor

from tailrace.core.ids import ResponseId, Version
from tailrace.core.responses.response import Finish
from tailrace.engines.contract import FetchedByRanks, Output, Request, Stats, Unsupported
from tailrace.engines.request_checks import RequestLimits, refuse_while_live
from tailrace.engines.stop_strings import DecodeText, ends_with_stop
from tailrace.engines.vllm.adapters import Adapters
from tailrace.engines.vllm.capabilities import capabilities
from tailrace.engines.vllm.experts import check_experts
from tailrace.engines.vllm.layout import engine_layout, model_parameters, rank_parts
from tailrace.engines.vllm.live_request import VllmRequest
from tailrace.engines.vllm.options import VllmOptions, vllm_config
from tailrace.engines.vllm.rank_fetch import fetch_by_ranks
from tailrace.engines.vllm.rank_files import rank_files
from tailrace.engines.vllm.routing import ReturnedRouting, routing_source
from tailrace.engines.vllm.sampling import core_request
from tailrace.weights.address import ChannelAddress
from tailrace.weights.sharding.table import Holding

INITIAL_VERSION = Version(0)


class VllmEngine:
    def __init__(
        self,
        checkpoint: Path,
        *,
        seed: int,
        options: VllmOptions,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        decode_text: DecodeText | None = None,
        version: Version = INITIAL_VERSION,
    ) -> None:
        device = torch.device(device)
        self.capabilities = capabilities(
            is_gpu=device.type == "cuda",
            may_release=options.may_release,
            is_float32=dtype == torch.float32,
            num_ranks=options.tensor_parallel_size,
        )
        if options.max_adapters and not self.capabilities.serves_adapters:
            raise Unsupported("on a GPU vLLM has no adapters for float32 models: use bfloat16")
        self.options = options
        self._decode_text, self._version = decode_text, version
        config = vllm_config(checkpoint, options, device=device, dtype=dtype, seed=seed)
        self._request_limits = RequestLimits(
            max_length=options.max_length,
            vocab_size=config.model_config.get_vocab_size(),
            finds_stop_strings=decode_text is not None,
        )
        # With log_stats vLLM tells of preemptions.
        self._client = InprocClient(config, Executor.get_class(config), log_stats=True)
        self._adapters = Adapters(self._client, options.max_adapters)
        self._block_tokens = config.cache_config.block_size
        self._num_blocks = config.cache_config.num_gpu_blocks - 1  # vLLM keeps one for padding
        parameters = model_parameters(checkpoint, dtype)
        check_experts(checkpoint, parameters)
        self._layout = engine_layout(checkpoint, parameters, options.tensor_parallel_size)
        parts = [rank_parts(holding, parameters) for holding in self._layout]
        self._call_ranks("tailrace_prepare", (parts, self._layout))
        self._routing = routing_source(self._client, options.routing, is_gpu=device.type == "cuda")
        self._live: dict[ResponseId, VllmRequest] = {}
        self._named: dict[str, VllmRequest] = {}
        """Requests that are in vLLM, by their name there."""
        self._exhausted: dict[ResponseId, VllmRequest] = {}
        """Requests whose prefix already uses up their budget. They finish in the next step."""
        self._numbers = count()
        self._num_preemptions = 0
        self._is_released, self._has_weights = False, True

    def submit(self, requests: Sequence[Request]) -> None:
        if not self._has_weights:
            raise RuntimeError("the engine has no weights: pull a version first")
        self._request_limits.check(requests, self._live)
        for request in requests:
            self._adapters.find(request.adapter)
        for request in requests:
            self._accept(request)

    def step(self) -> list[Output]:
        outputs = [self._finish(live, live.request.finish_at_end) for live in list(self._exhausted.values())]
        if not self._named:
            return outputs
        found = self._client.get_output().outputs
        if self._routing is not None:
            self._routing.collect(self._named)
        for output in found:
            if (finished := self._absorb(output)) is not None:
                outputs.append(finished)
        return outputs

    def progress(self) -> list[Output]:
        return [live.take_output(self._version, None) for live in self._live.values() if live.tokens]

    def interrupt(self, responses: Iterable[ResponseId]) -> list[Output]:
        live = [self._live[response] for response in dict.fromkeys(responses) if response in self._live]
        self._leave_vllm(live)
        return [self._finish(request, Finish.INTERRUPTED) for request in live]

    def abort(self, responses: Iterable[ResponseId]) -> None:
        live = [self._live[response] for response in dict.fromkeys(responses) if response in self._live]
        self._leave_vllm(live)
        for request in live:
            self._forget(request)

    def stats(self) -> Stats:
        scheduler = self._client.engine_core.scheduler
        num_running, num_waiting = scheduler.get_request_counts()
        return Stats(
            num_running=num_running,
            num_waiting=num_waiting + len(self._exhausted),
            kv_tokens_used=round(scheduler.kv_cache_manager.usage * self._num_blocks) * self._block_tokens,
            kv_tokens_budget=self._num_blocks * self._block_tokens,
            num_preemptions=self._num_preemptions,
            version=self._version,
        )

    def layout(self) -> tuple[Holding, ...]:
        return self._layout

    def pull(self, weights: Sequence[Mapping[str, torch.Tensor]], version: Version) -> None:
        if len(weights) != len(self._layout):
            raise ValueError(f"the engine has {len(self._layout)} ranks, got the weights of {len(weights)}")
        self._replace_weights(version, lambda: self._load(weights))

    def fetch(self, channel: ChannelAddress, minimum_version: Version) -> FetchedByRanks:
        return fetch_by_ranks(self._call_ranks, channel, minimum_version)

    def load_fetched(self, version: Version) -> None:
        self._replace_weights(version, lambda: self._call_ranks("tailrace_load_fetched"))

    def load_adapter(self, name: str, directory: Path) -> None:
        refuse_while_live(f"load the adapter '{name}'", self._live)
        self._adapters.load(name, directory)
        self._reset_prefix_cache()  # vLLM knows cached keys and values by the adapter's name only

    def drop_adapter(self, name: str) -> None:
        refuse_while_live(f"drop the adapter '{name}'", self._live)
        self._adapters.drop(name)

    def release(self) -> None:
        self._need_release()
        refuse_while_live("release memory", self._live)
        if self._is_released:
            return
        self._drain()
        self._client.sleep(level=2)
        self._is_released, self._has_weights = True, False

    def restore(self) -> None:
        self._need_release()
        if self._is_released:
            self._client.wake_up()
            self._is_released = False

    def close(self) -> None:
        """End vLLM and its processes. A worker need not call it: its process ends."""
        self._client.shutdown()

    def _need_release(self) -> None:
        if not self.capabilities.releases_memory:
            raise Unsupported("the vllm engine cannot release its memory: it was not started for that")

    def _accept(self, request: Request) -> None:
        live = VllmRequest(name=str(next(self._numbers)), request=request, num_reported=len(request.prefix))
        if request.sampling.stop_strings:
            live.response = request.prefix.tolist()
        if self._routing is not None:
            live.routing = [self._routing.nothing]
        self._live[request.response_id] = live
        if len(request.prefix) >= request.end:
            self._exhausted[request.response_id] = live
            return
        self._named[live.name] = live
        lora = self._adapters.find(request.adapter)
        returns_routing = isinstance(self._routing, ReturnedRouting)
        self._client.add_request(core_request(live.name, request, lora, returns_routing=returns_routing))

    def _absorb(self, output: EngineCoreOutput) -> Output | None:
        """Take a request's new tokens; return its last output if they end it."""
        events = output.events or ()
        self._num_preemptions += sum(event.type is EngineCoreEventType.PREEMPTED for event in events)
        if (live := self._named.get(output.request_id)) is None:
            return None
        if self._routing is not None and output.new_token_ids:
            live.routing.append(self._routing.rows(live, output))
        live.add(output)
        if output.finish_reason is not None:
            if output.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
                raise RuntimeError(f"vLLM ended {live.request.response_id} with {output.finish_reason}")
            is_stopped = output.finish_reason is FinishReason.STOP
            return self._finish(live, Finish.STOP if is_stopped else live.request.finish_at_end)
        if self._has_stop_string(live):
            self._leave_vllm([live])
            return self._finish(live, Finish.STOP)
        return None

    def _has_stop_string(self, live: VllmRequest) -> bool:
        strings = live.request.sampling.stop_strings
        if not strings or not live.response or live.request.forced_length is not None:
            return False
        assert self._decode_text is not None, "a request with stop strings is refused without decode_text"
        return ends_with_stop(live.response, strings, self._decode_text)

    def _leave_vllm(self, live: Iterable[VllmRequest]) -> None:
        self._client.abort_requests([request.name for request in live if request.name in self._named])

    def _finish(self, live: VllmRequest, finish: Finish) -> Output:
        self._forget(live)
        return live.take_output(self._version, finish)

    def _forget(self, live: VllmRequest) -> None:
        del self._live[live.request.response_id]
        self._named.pop(live.name, None)
        self._exhausted.pop(live.request.response_id, None)

    def _replace_weights(self, version: Version, load: Callable[[], object]) -> None:
        refuse_while_live(f"pull version {version}", self._live)
        if self._is_released:
            raise RuntimeError(f"cannot pull version {version}: the engine's memory is released")
        self._drain()
        load()
        self._reset_prefix_cache()
        self._version, self._has_weights = version, True

    def _call_ranks(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        answers: list[Any] = self._client.collective_rpc(method, args=args)
        return answers

    def _load(self, weights: Sequence[Mapping[str, torch.Tensor]]) -> None:
        if len(weights) == 1:  # vLLM's worker is in this process
            self._call_ranks("tailrace_load", (weights[0],))
            return
        with rank_files(weights) as files:
            self._call_ranks("tailrace_load_files", (files,))

    def _drain(self) -> None:
        """Finish steps that vLLM has begun ahead of time, whose requests have been aborted."""
        core: Any = self._client.engine_core
        while core.batch_queue:
            self._client.get_output()

    def _reset_prefix_cache(self) -> None:
        if not self._client.reset_prefix_cache():
            raise RuntimeError("vLLM could not reset its prefix cache, which holds keys and values of the old weights")
