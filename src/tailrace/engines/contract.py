"""What a rollout engine promises. Every engine passes ``tests/contract/engine_suite.py``.

* ``submit`` accepts requests at any time. ``step`` advances every running request and returns those that finished, with
  the tokens not returned before. ``progress`` returns the tokens of unfinished requests that were not returned before;
  requests without new tokens are absent.
* Outputs of one response are consecutive: each starts where the previous one ended, the first one at
  ``len(request.prefix)``. Tokens include the stop token. The last output has a ``finish`` reason.
* ``interrupt`` ends requests and returns the tokens not returned before (possibly none), with finish INTERRUPTED. Ids
  that are not live are ignored. ``abort`` ends requests and returns nothing.
* A request whose prefix already uses up its budget finishes with LENGTH and no tokens in the next ``step``.
* Log-probs are those of the distribution that the tokens were sampled from.
* ``layout`` says which parts of the model the engine holds, one holding per rank. ``pull`` is given one mapping per
  holding, in the same order: the rank's part of each of its parameters, by Hugging Face name. ``pull`` with live
  requests is an error.
* ``release`` gives the engine's memory back; it is an error with live requests. ``restore`` takes the memory again;
  then weights must be pulled before the next ``submit``.
* An engine that returns routing gives, for a mixture of experts, the experts of each generated token
  (``Segment.routing``).
* An engine whose ranks fetch has the methods of ``RankedEngine``.
* An engine that serves adapters has the methods of ``AdapterEngine``. A request may name an adapter that was loaded.
* ``submit`` raises ``Unservable``, and accepts none of the requests, if no engine of this kind could ever serve one.

Engines differ in what else they can do, and each declares it (``Capabilities``). The suite tests what is declared. A
call that needs a capability the engine lacks raises ``Unsupported``. Settings that need one are refused by
``engines/registry.py`` before work starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tailrace.core.costs import PrefillWork
from tailrace.core.ids import ResponseId, Version
from tailrace.core.responses.response import Finish
from tailrace.store.segment import Segment, Tokens
from tailrace.weights.address import ChannelAddress
from tailrace.weights.sharding.table import Holding

if TYPE_CHECKING:
    import torch


class Unservable(Exception):
    """No engine of this kind can serve the request, so a restart does not help. The message says which and why."""


class Unsupported(ValueError):
    """The engine cannot do what is asked of it, or cannot run the model. The message names the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do besides generating."""

    name: str
    """The engine's name in messages."""
    has_keyed_randomness: bool
    """The random number of a token is a function of (seed, response, token position): neither other requests nor an
    interruption changes what is sampled. Without it, a resumed request continues with different random numbers."""
    has_exact_interrupt: bool
    """``interrupt`` returns every token generated so far. Without it, tokens not returned before may be lost."""
    streams_progress: bool
    """``progress`` returns tokens of unfinished requests. Without it, a request returns all its tokens when it ends."""
    has_deterministic_mode: bool
    """In this mode tokens and log-probs are equal bit by bit, whatever else the engine runs."""
    releases_memory: bool
    """``release`` and ``restore`` work."""
    uses_weights: bool
    """Responses come from the weights last pulled."""
    has_kv_cache: bool
    """``stats`` counts the tokens in a KV cache."""
    serves_adapters: bool = False
    """Requests may name one of several LoRA adapters."""
    max_parallel_size: int = 1
    """Most devices that one instance can be split over."""
    shares_prompts: bool = False
    """Requests with the same prompt share the memory of its keys and values."""
    returns_routing: bool = False
    """Outputs of a mixture of experts may hold the experts of each token."""
    ranks_fetch: bool = False
    """Ranks are processes of their own, and each can fetch its part of a version from a channel."""
    tokens_per_step: int = 1
    """Most tokens that a response gains in one ``step``. They may be returned one step later."""

    def __post_init__(self) -> None:
        if self.has_deterministic_mode and not self.has_keyed_randomness:
            raise ValueError(f"the {self.name} engine declares a deterministic mode without keyed randomness")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters of a request. Temperature 0 is greedy decoding, with the log-probs of temperature 1."""

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
    response_id: ResponseId
    prompt: Tokens
    prefix: Tokens
    """Response tokens that were generated earlier, here or on another instance. They count towards the budget."""
    budget: int
    """Most response tokens, the prefix included."""
    sampling: Sampling
    forced_length: int | None = None
    """For benchmarks: ignore stop tokens and strings, and end at exactly this many response tokens."""
    adapter: str | None = None
    """Name of the LoRA adapter to generate with; None: the model itself."""

    @property
    def end(self) -> int:
        """Number of response tokens at which the response ends, if no stop ends it earlier."""
        return self.budget if self.forced_length is None else self.forced_length

    @property
    def finish_at_end(self) -> Finish:
        """Why a response ends that has no token left: a forced length stands for the model's own end."""
        is_forced = self.forced_length is not None and self.forced_length < self.budget
        return Finish.STOP if is_forced else Finish.LENGTH


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
    """Number of preemptions since the engine started."""
    version: Version
    prefill: PrefillWork | None = None
    """Tokens prefilled so far and the time it took; None if the engine does not measure it."""


class AdapterEngine(Protocol):
    """What an engine that serves adapters has besides the methods of ``Engine``. An adapter is a directory in PEFT's
    format. Loading and dropping with live requests is an error."""

    def load_adapter(self, name: str, directory: Path) -> None: ...
    def drop_adapter(self, name: str) -> None: ...


class FetchedByRanks(NamedTuple):
    version: Version
    num_bytes: int
    """Bytes that all ranks fetched together."""


class RankedEngine(Protocol):
    """What an engine whose ranks fetch has besides the methods of ``Engine``.

    ``fetch`` lets each rank fetch its own part of the newest version and keep it; the engine stays as it is, also if an
    error of the channel is raised. ``load_fetched`` is ``pull`` with what the ranks have kept.
    """

    def fetch(self, channel: ChannelAddress, minimum_version: Version) -> FetchedByRanks: ...
    def load_fetched(self, version: Version) -> None: ...


class Engine(Protocol):
    @property
    def capabilities(self) -> Capabilities: ...
    def submit(self, requests: Sequence[Request]) -> None: ...
    def step(self) -> list[Output]: ...
    def progress(self) -> list[Output]: ...
    def interrupt(self, responses: Iterable[ResponseId]) -> list[Output]: ...
    def abort(self, responses: Iterable[ResponseId]) -> None: ...
    def layout(self) -> Sequence[Holding]: ...
    def pull(self, weights: Sequence[Mapping[str, torch.Tensor]], version: Version) -> None: ...
    def stats(self) -> Stats: ...
    def release(self) -> None: ...
    def restore(self) -> None: ...
