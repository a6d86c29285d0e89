"""The tokens of live requests. Running requests have a row in shared arrays, waiting requests have their own copy.

A row of ``tokens`` holds prompt and response; ``logprobs`` and ``behaviour_logprobs`` are filled where the engine
sampled (the prompt and a resumed prefix stay 0). Row lengths live in the batcher, which owns them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tailrace.core.ids import Version
from tailrace.core.responses.response import Finish
from tailrace.engines.contract import Output, Request
from tailrace.engines.native.sampler import SamplingColumns
from tailrace.engines.native.step_plan import Ticket
from tailrace.store.segment import Logprobs, Segment, Tokens


@dataclass(slots=True, kw_only=True, eq=False)
class LiveRequest:
    """A request between ``submit`` and its last output."""

    request: Request
    ticket: Ticket
    key: np.uint64
    """Key of its random numbers."""
    end: int
    """Length of prompt and response at which the request ends, if no stop ends it earlier."""
    stop_set: int
    num_reported: int
    """Number of response tokens already returned, the prefix included."""
    tokens: Tokens
    """Prompt and response while the request waits. While it runs, the slot table has them."""
    logprobs: Logprobs = field(default_factory=lambda: np.empty(0, np.float32))
    behaviour_logprobs: Logprobs = field(default_factory=lambda: np.empty(0, np.float32))

    @property
    def is_running(self) -> bool:
        return self.ticket.slot >= 0

    @property
    def has_stop_strings(self) -> bool:
        return bool(self.request.sampling.stop_strings) and self.request.forced_length is None


class SlotTable:
    def __init__(self, num_slots: int, max_length: int) -> None:
        self.tokens: Tokens = np.zeros((num_slots, max_length), np.int32)
        self.logprobs: Logprobs = np.zeros((num_slots, max_length), np.float32)
        self.behaviour_logprobs: Logprobs = np.zeros((num_slots, max_length), np.float32)
        self.key: NDArray[np.uint64] = np.zeros(num_slots, np.uint64)
        self.prompt_length: NDArray[np.int64] = np.zeros(num_slots, np.int64)
        self.end: NDArray[np.int64] = np.zeros(num_slots, np.int64)
        self.stop_set: NDArray[np.int64] = np.zeros(num_slots, np.int64)
        self.stop_ids: list[tuple[int, ...]] = [()] * num_slots
        self.settings = SamplingColumns(num_slots)

    def load(self, live: LiveRequest) -> None:
        """Copy the request's tokens into its slot."""
        slot, length, known = live.ticket.slot, len(live.tokens), len(live.logprobs)
        self.tokens[slot, :length] = live.tokens
        self.logprobs[slot, :length] = 0.0
        self.behaviour_logprobs[slot, :length] = 0.0
        self.logprobs[slot, :known] = live.logprobs
        self.behaviour_logprobs[slot, :known] = live.behaviour_logprobs
        self.key[slot] = live.key
        self.prompt_length[slot] = live.ticket.prompt_length
        self.end[slot] = live.end
        self.stop_set[slot] = live.stop_set
        is_forced = live.request.forced_length is not None
        self.stop_ids[slot] = () if is_forced else live.request.sampling.stop_token_ids
        self.settings.set(slot, live.request.sampling)

    def save(self, live: LiveRequest, slot: int, length: int) -> None:
        """Copy the contents of a preempted request's slot back into the request."""
        live.tokens = self.tokens[slot, :length].copy()
        live.logprobs = self.logprobs[slot, :length].copy()
        live.behaviour_logprobs = self.behaviour_logprobs[slot, :length].copy()

    def take_output(self, live: LiveRequest, length: int, version: Version, finish: Finish | None) -> Output:
        """The tokens not returned before. ``length``: length of the sequence, used only while the request runs."""
        start, slot = live.ticket.prompt_length + live.num_reported, live.ticket.slot
        if not live.is_running:
            tokens, logprobs, full = live.tokens[start:], live.logprobs[start:], live.behaviour_logprobs[start:]
        else:
            tokens = self.tokens[slot, start:length]
            logprobs, full = self.logprobs[slot, start:length], self.behaviour_logprobs[slot, start:length]
        segment = Segment(
            response_id=live.request.response_id,
            start=live.num_reported,
            version=version,
            tokens=tokens.copy(),
            logprobs=logprobs.copy(),
            behaviour_logprobs=full.copy() if live.request.sampling.is_truncated else None,
            mask=np.ones(len(tokens), np.uint8),
        )
        live.num_reported += len(tokens)
        return Output(segment=segment, finish=finish)
