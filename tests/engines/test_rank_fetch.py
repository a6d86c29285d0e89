"""Ranks that fetch their own parts of a version: all the same version, or none. The ranks here are objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tailrace.core.ids import Version
from tailrace.engines.vllm.rank_fetch import RankAnswer, RankFetcher, fetch_by_ranks
from tailrace.weights.address import SHARED_MEMORY, ChannelAddress
from tailrace.weights.channel import VersionNotPublished, WriterLost
from tailrace.weights.sharding.table import Heads, Scheme, holdings, volume
from tailrace.weights.slots.shared_memory import create
from tailrace.weights.slots.two_slots import WeightWriter, layout_of
from weights.models import are_equal, parameters, values

HEADS = Heads(num_query=4, num_kv=2, size=2)
MODEL = parameters(HEADS)
LAYOUT = holdings(MODEL, HEADS, Scheme(num_workers=2), side="engine")


class Ranks:
    """Two ranks over a real channel. Versions in ``to_publish`` come out one by one, before the second rank fetches."""

    def __init__(self, path: Path) -> None:
        self.sent = values(MODEL)
        self.writer: WeightWriter = create(path, layout_of(self.sent.items()))
        self.fetchers = [RankFetcher(holding, torch.device("cpu")) for holding in LAYOUT]
        self.to_publish: list[int] = []
        self.calls: list[str] = []

    def publish(self, version: int) -> None:
        self.writer.publish(Version(version), self.sent.items())

    def call(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        self.calls.append(method)
        return [self._one(rank, fetcher, method, args) for rank, fetcher in enumerate(self.fetchers)]

    def _one(self, rank: int, fetcher: RankFetcher, method: str, args: tuple[Any, ...]) -> RankAnswer | None:
        if method == "tailrace_drop_fetched":
            fetcher.drop()
            return None
        if rank == 1 and self.to_publish:
            self.publish(self.to_publish.pop(0))
        channel, minimum_version, is_again = args
        return fetcher.fetch(channel, minimum_version, is_again=is_again)


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path / "w")


def test_each_rank_fetches_its_own_slices_and_gives_them_away_once(ranks: Ranks) -> None:
    ranks.publish(3)
    version, num_bytes = fetch_by_ranks(ranks.call, ranks.writer.address, Version(1))
    assert (version, ranks.calls) == (3, ["tailrace_fetch"])
    assert num_bytes == 4 * sum(volume(piece.box) for holding in LAYOUT for piece in holding.pieces)
    for holding, fetcher in zip(LAYOUT, ranks.fetchers, strict=True):
        taken = dict(fetcher.take())
        assert list(taken) == [piece.parameter for piece in holding.pieces]
        for piece in holding.pieces:
            part = ranks.sent[piece.parameter][tuple(slice(*side) for side in piece.box)]
            assert are_equal(taken[piece.parameter], part.contiguous())
        assert list(fetcher.take()) == []


def test_a_version_published_between_the_fetches_is_fetched_by_all(ranks: Ranks) -> None:
    ranks.publish(3)
    ranks.to_publish = [4]
    assert fetch_by_ranks(ranks.call, ranks.writer.address, Version(1)).version == 4
    assert ranks.calls == ["tailrace_fetch"] * 2


@pytest.mark.parametrize(
    ("kind", "words"), [("missing", "missing"), ("old", "version 7 is not published; the channel holds 3")]
)
def test_a_fetch_that_fails_on_a_rank_is_dropped_by_all(ranks: Ranks, tmp_path: Path, kind: str, words: str) -> None:
    ranks.publish(3)
    missing = ChannelAddress(kind=SHARED_MEMORY, location=str(tmp_path / "missing"))
    address = missing if kind == "missing" else ranks.writer.address
    with pytest.raises((FileNotFoundError, VersionNotPublished), match=words):
        fetch_by_ranks(ranks.call, address, Version(7))
    assert ranks.calls == ["tailrace_fetch", "tailrace_drop_fetched"]
    assert [list(fetcher.take()) for fetcher in ranks.fetchers] == [[], []]


def test_ranks_that_never_agree_are_given_up() -> None:
    calls: list[str] = []

    def call(method: str, args: tuple[Any, ...]) -> list[Any]:
        calls.append(method)
        return [RankAnswer(version=1), RankAnswer(version=2)]

    with pytest.raises(VersionNotPublished, match="different versions, 100 times"):
        fetch_by_ranks(call, ChannelAddress(kind=SHARED_MEMORY, location=""), Version(0))
    assert calls[-1] == "tailrace_drop_fetched"


def test_the_error_of_a_rank_keeps_its_kind_and_its_words() -> None:
    answers = [RankAnswer(version=1), RankAnswer(problem=("WriterLost", "training rank 1 has ended"))]
    with pytest.raises(WriterLost, match="training rank 1 has ended"):
        fetch_by_ranks(lambda method, args: answers, ChannelAddress(kind=SHARED_MEMORY, location=""), Version(0))
