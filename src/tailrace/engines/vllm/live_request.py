"""A request that vLLM works on, and what it has generated so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from vllm.v1.engine import EngineCoreOutput

from tailrace.core.ids import Version
from tailrace.core.responses.response import Finish
from tailrace.engines.contract import Output, Request
from tailrace.store.segment import Routing, Segment


@dataclass(slots=True, kw_only=True)
class VllmRequest:
    name: str
    """The request's name in vLLM. A response that is submitted again gets a new one."""
    request: Request
    num_reported: int
    """Number of response tokens already returned, the prefix included."""
    tokens: list[int] = field(default_factory=list)
    """Generated tokens that were not returned yet."""
    logprobs: list[float] = field(default_factory=list)
    behaviour_logprobs: list[float] = field(default_factory=list)
    """Log-probs before truncation; empty if the request's sampling is not truncated."""
    response: list[int] = field(default_factory=list)
    """The whole response, kept only to search it for stop strings."""
    routing: list[Routing] = field(default_factory=list)
    """Experts of ``tokens``; the first item is that of no token. Empty if the engine does not return experts."""
    experts_at: dict[int, Routing] = field(default_factory=dict)
    """Experts by position, told by vLLM's worker before the tokens came."""

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and response so far."""
        return len(self.request.prompt) + self.num_reported + len(self.tokens)

    def add(self, output: EngineCoreOutput) -> None:
        if not output.new_token_ids:
            return
        assert output.new_logprobs is not None, "vLLM gave no log-probs"
        found = output.new_logprobs.logprobs
        self.tokens += output.new_token_ids
        self.logprobs += found[:, 0].tolist()
        if self.request.sampling.is_truncated:
            self.behaviour_logprobs += found[:, 1].tolist()
        if self.request.sampling.stop_strings:
            self.response += output.new_token_ids

    def take_output(self, version: Version, finish: Finish | None) -> Output:
        """Return what was not returned before."""
        is_truncated = self.request.sampling.is_truncated
        segment = Segment(
            response_id=self.request.response_id,
            start=self.num_reported,
            version=version,
            tokens=np.array(self.tokens, np.int32),
            logprobs=np.array(self.logprobs, np.float32),
            behaviour_logprobs=np.array(self.behaviour_logprobs, np.float32) if is_truncated else None,
            mask=np.ones(len(self.tokens), np.uint8),
            routing=np.concatenate(self.routing) if self.routing else None,
        )
        self.num_reported += len(self.tokens)
        self.tokens, self.logprobs, self.behaviour_logprobs = [], [], []
        self.routing = self.routing[:1]
        return Output(segment=segment, finish=finish)
