"""The plan of one step: what the runner must do before every ready slot decodes a token."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from tailrace.core.ids import ResponseId
from tailrace.engines.native.rows import RowTransfer

DETERMINISTIC_CHUNK = 64
"""Tokens of every chunk in deterministic mode. The last chunk of a prompt is padded to this size."""


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """What the batcher knows about a request."""

    name: ResponseId
    sharing: Hashable
    """Tickets with equal ``sharing`` have the same prompt and may share its KV."""
    prompt_length: int
    length: int
    """Number of known tokens (prompt and response) while the ticket waits."""
    end: int
    """Number of tokens at which the request ends, if no stop ends it earlier."""
    slot: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Compute the KV of ``count`` tokens of a slot from position ``start`` on."""

    slot: int
    start: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    ticket: Ticket
    slot: int
    """The slot that the ticket had. Its contents are still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What must be done before the decode of this step, in the order of the fields."""

    preempted: tuple[Preemption, ...] = ()
    num_rows: tuple[int, ...] = ()
    """Rows that each length class must have room for."""
    moves: tuple[RowTransfer, ...] = ()
    admitted: tuple[Ticket, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    copies: tuple[RowTransfer, ...] = ()
    """Copies of prompts that several sequences share."""
    late_chunks: tuple[Chunk, ...] = ()
    """Chunks that need a copy to be done first."""
    is_changed: bool = False
    """Whether rows or the set of decoding slots differ from those of the previous plan."""


UNCHANGED = Plan()
