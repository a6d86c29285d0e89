"""The plan of one step: what the batcher decides and the runner carries out before every ready slot decodes a token."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from tailrace.core.ids import TrajectoryId
from tailrace.engines.native.rows import Row

DETERMINISTIC_CHUNK = 64
"""Tokens of every chunk in deterministic mode, the last one of a prompt padded."""


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """What the batcher knows about a request."""

    name: TrajectoryId
    sharing: Hashable
    """Tickets with equal ``sharing`` have the same prompt and may share its KV."""
    prompt_length: int
    length: int
    """Tokens known while the ticket waits: prompt and response so far."""
    slot: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Compute the KV of ``count`` tokens of a slot from position ``start`` on."""

    slot: int
    start: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Copy the first ``count`` positions of one row's KV to another row."""

    source: Row
    target: Row
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    ticket: Ticket
    slot: int
    """The slot it had; its contents are still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What must be done before this step's decode, in the order of the fields."""

    preempted: tuple[Preemption, ...] = ()
    num_rows: tuple[int, ...] = ()
    """Rows that each length class must have room for."""
    moves: tuple[Transfer, ...] = ()
    admitted: tuple[Ticket, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    copies: tuple[Transfer, ...] = ()
    """Prompts that are shared."""
    late_chunks: tuple[Chunk, ...] = ()
    """Chunks that build on a copy."""
    is_changed: bool = False
    """Rows or the set of decoding slots differ from the last plan's."""


UNCHANGED = Plan()
