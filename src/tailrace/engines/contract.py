"""What a rollout engine promises. Every adapter passes ``tests/contract/engine_suite.py``.

* ``submit`` accepts work at any time; ``step`` advances every running request and returns those that finished, with
  the tokens not yet returned. ``progress`` drains what unfinished requests have generated since they were last asked;
  requests without news are absent.
* Outputs of one trajectory are consecutive: the next one starts where the last one ended, the first one at
  ``len(request.prefix)``. Tokens include the stop token. The last output carries a ``finish`` reason.
* ``interrupt`` returns the exact tokens not yet returned (possibly none), with finish INTERRUPTED, for just those ids
  that were live; ids that already finished are absent. ``abort`` forgets without an answer.
* A request whose prefix already uses up its budget finishes with LENGTH and no tokens in the next ``step``.
* Log-probs are those of the distribution really sampled from. Randomness is keyed by
  (seed, trajectory, token position): neither batch composition nor interruption changes what is sampled.
* ``layout`` says what of the model the engine keeps; ``pull`` is given the values of just that, by Hugging Face name.
  ``pull`` with live requests is an error. ``release`` gives the engine's memory back while it has no live
  requests; ``restore`` takes it again, after which weights must be pulled before the next ``submit``.
* ``submit`` raises ``Unservable``, taking none of the requests, where no engine of this kind could ever serve one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tailrace.core.costs import PrefillWork
from tailrace.core.ids import TrajectoryId, Version
from tailrace.core.trajectory import Finish
from tailrace.store.segment import Segment, Tokens
from tailrace.weights.sharding import Holding

if TYPE_CHECKING:
    import torch


class Unservable(Exception):
    """A request that no restart would help; the message says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How one request is sampled. ``temperature`` 0 is greedy; its log-probs are those at temperature 1."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()

    @property
    def is_truncated(self) -> bool:
        return self.top_p < 1.0 or self.top_k is not None or self.min_p > 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    trajectory: TrajectoryId
    prompt: Tokens
    prefix: Tokens
    """Response tokens generated earlier (perhaps elsewhere); they count towards the budget and never change."""
    budget: int
    """Most response tokens, over all segments."""
    sampling: Sampling
    forced_length: int | None = None
    """Benchmark mode: ignore stops and end at exactly this many response tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    segment: Segment
    finish: Finish | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    num_running: int
    num_waiting: int
    kv_tokens_used: int
    kv_tokens_budget: int
    num_preemptions: int
    """Since the engine started."""
    version: Version
    prefill: PrefillWork | None = None
    """None: it is not measured."""


class Engine(Protocol):
    def submit(self, requests: Sequence[Request]) -> None: ...
    def step(self) -> list[Output]: ...
    def progress(self) -> list[Output]: ...
    def interrupt(self, trajectories: Iterable[TrajectoryId]) -> list[Output]: ...
    def abort(self, trajectories: Iterable[TrajectoryId]) -> None: ...
    def layout(self) -> Holding: ...
    def pull(self, weights: Mapping[str, torch.Tensor], version: Version) -> None: ...
    def stats(self) -> Stats: ...
    def release(self) -> None: ...
    def restore(self) -> None: ...
