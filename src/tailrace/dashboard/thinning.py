"""Less to draw, nothing to count: a long run is drawn at the resolution of a screen. Totals never come from here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tailrace.observe.timeline import Lane, Span


def buckets(count: int, limit: int) -> list[range]:
    """At most ``limit`` ranges of nearly equal length that cover 0 .. count - 1 in order."""
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    parts = min(count, limit)
    edges = [count * part // parts for part in range(parts + 1)] if parts else []
    return [range(start, end) for start, end in pairwise(edges)]


def drawn(lane: Lane, *, limit: int) -> list[Span]:
    """The lane's window with its idle time, in spans of which the short ones are merged.

    A run of spans shorter than a ``limit``-th of the window is drawn as what took most of its time.
    """
    shortest = (lane.end - lane.start) / limit
    merged: list[Span] = []
    cluster: list[Span] = []
    for span in lane.with_idle():
        if span.seconds >= shortest:
            merged += _blend(cluster)
            merged.append(span)
            cluster = []
            continue
        cluster.append(span)
        if cluster[-1].end - cluster[0].start >= shortest:
            merged += _blend(cluster)
            cluster = []
    return merged + _blend(cluster)


def _blend(cluster: Sequence[Span]) -> list[Span]:
    if not cluster:
        return []
    seconds: dict[str, float] = {}
    for span in cluster:
        seconds[span.kind] = seconds.get(span.kind, 0.0) + span.seconds
    kind = max(seconds, key=lambda name: seconds[name])
    return [Span(kind=kind, start=cluster[0].start, end=cluster[-1].end)]
