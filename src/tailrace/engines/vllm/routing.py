"""Where the engine gets the experts of generated tokens from: vLLM's own return, or our reading in its worker.

Row i of a response holds the experts at the position where token i was predicted. vLLM computes that position in the
step that generates token i, never from its prefix cache, so every generated token has a row: also the first one of a
request that continues an interrupted response.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import numpy as np
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.core_client import InprocClient

from tailrace.engines.contract import Unsupported
from tailrace.engines.vllm.live_request import VllmRequest
from tailrace.store.segment import Routing


class RoutingSource(Protocol):
    nothing: Routing
    """Routing of no token: its shape says layers and experts per token."""

    def collect(self, live: Mapping[str, VllmRequest]) -> None:
        """Called after each step of vLLM. ``live``: requests in vLLM by name."""
        ...

    def rows(self, live: VllmRequest, output: EngineCoreOutput) -> Routing:
        """Experts of the tokens of an output, before they are added to the request."""
        ...


class CapturedRouting:
    """Experts read in vLLM's worker (``router_capture.py``)."""

    def __init__(self, client: InprocClient) -> None:
        self._client = client
        shape, problem = client.collective_rpc("tailrace_capture_routing")[0]
        if shape is None:
            raise Unsupported(f"the vllm engine cannot return the experts of tokens: {problem}")
        self.nothing: Routing = np.empty((0, *shape), np.int16)

    def collect(self, live: Mapping[str, VllmRequest]) -> None:
        for name, rows in self._client.collective_rpc("tailrace_take_routing")[0].items():
            if (request := live.get(name)) is not None:
                request.experts_at.update(rows)

    def rows(self, live: VllmRequest, output: EngineCoreOutput) -> Routing:
        first = live.num_tokens - 1
        positions = range(first, first + len(output.new_token_ids))
        try:
            found = np.stack([live.experts_at.pop(position) for position in positions])
        except KeyError as missing:
            raise RuntimeError(f"{live.request.response_id}: vLLM told no experts of position {missing}") from missing
        # What is left comes from chunks of the prompt, or from a step that vLLM has begun ahead of time.
        live.experts_at = {position: row for position, row in live.experts_at.items() if position > positions[-1]}
        return found


class ReturnedRouting:
    """Experts that vLLM returns by itself. Requests must skip all positions before the first token's."""

    def __init__(self, client: InprocClient) -> None:
        self._layers, top_k = client.collective_rpc("tailrace_routed_layers")[0]
        self.nothing: Routing = np.empty((0, len(self._layers), top_k), np.int16)

    def collect(self, live: Mapping[str, VllmRequest]) -> None:
        pass

    def rows(self, live: VllmRequest, output: EngineCoreOutput) -> Routing:
        found = output.routed_experts
        num_rows = 0 if found is None else len(found)
        if found is None or num_rows != len(output.new_token_ids):
            raise RuntimeError(
                f"{live.request.response_id}: vLLM returned the experts of {num_rows} positions with"
                f" {len(output.new_token_ids)} tokens; set rollout.return_routing to 'never'"
            )
        experts: Routing = found[:, self._layers].astype(np.int16)
        return experts


def routing_source(
    client: InprocClient, asked: Literal["auto", "always", "never"], *, is_gpu: bool
) -> RoutingSource | None:
    """None if experts are not asked for, or if ``auto`` finds that this vLLM cannot return them."""
    if asked == "never":
        return None
    if is_gpu:
        return ReturnedRouting(client)
    try:
        return CapturedRouting(client)
    except Unsupported as problem:
        if asked == "always":
            raise
        print(f"{problem}; the run goes on without them", flush=True)  # for the worker's log
        return None
