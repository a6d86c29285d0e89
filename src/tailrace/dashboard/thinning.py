"""Reduces a long run to the resolution of a screen. It is for drawing only: totals never come from here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tailrace.observe.time_use.timeline import Lane, Span


def buckets(count: int, limit: int) -> list[range]:
    """At most ``limit`` ranges of nearly equal length that cover 0 .. count - 1 in order."""
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    parts = min(count, limit)
    edges = [count * part // parts for part in range(parts + 1)] if parts else []
    return [range(start, end) for start, end in pairwise(edges)]


def drawn(lane: Lane, *, limit: int) -> list[Span]:
    """The lane's window with its idle time, in spans of which the short ones are merged.

    A run of spans shorter than a ``limit``-th of the window is drawn as what took most of its time, and as one with
    neighbours of that kind. A version is told where they all have it.
    """
    shortest = (lane.end - lane.start) / limit
    merged: list[Span] = []
    for cluster in _clusters(lane.with_idle(), shortest):
        span = cluster[0] if len(cluster) == 1 else _blend(cluster)
        last = merged[-1] if merged else None
        if last and last.kind == span.kind and (len(cluster) > 1 or span.seconds < shortest):
            version = last.version if last.version == span.version else None
            merged[-1] = Span(kind=last.kind, start=last.start, end=span.end, version=version)
        else:
            merged.append(span)
    return merged


def _clusters(spans: Sequence[Span], shortest: float) -> Iterator[list[Span]]:
    """Groups of spans: every long span alone, short ones together until they are long."""
    cluster: list[Span] = []
    for span in spans:
        if span.seconds >= shortest and cluster:
            yield cluster
            cluster = []
        cluster.append(span)
        if cluster[-1].end - cluster[0].start >= shortest:
            yield cluster
            cluster = []
    if cluster:
        yield cluster


def _blend(cluster: Sequence[Span]) -> Span:
    seconds: dict[str, float] = {}
    for span in cluster:
        seconds[span.kind] = seconds.get(span.kind, 0.0) + span.seconds
    kind = max(seconds, key=lambda name: seconds[name])
    versions = {span.version for span in cluster if span.kind == kind}
    version = versions.pop() if len(versions) == 1 else None
    return Span(kind=kind, start=cluster[0].start, end=cluster[-1].end, version=version)
