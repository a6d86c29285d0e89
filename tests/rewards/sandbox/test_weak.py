"""Mode weak: limits hold, nothing is isolated. The page lists the hostile programs that got through."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator

import pytest

from rewards.sandbox.hostile import HOSTILE
from rewards.sandbox.players import ROOT, Player, is_escape, left_behind
from tailrace.rewards.sandbox.weak import NOT_STOPPED, what_weak_does_not_stop

PAGE = ROOT / "docs" / "code-rewards.md"
SURE = {"host_file", "passwords", "processes_of_others", "network", "shell", "memory_bomb_in_tmp"}
"""They get through on any Linux. Others depend on its settings."""


@pytest.fixture
def player() -> Iterator[Player]:
    if sys.platform != "linux":
        pytest.skip("the programs are written for Linux")
    started = Player.start("ordinary", "weak")
    yield started
    started.close()


def named_on_the_page() -> set[str]:
    part = PAGE.read_text().split("<!-- through -->")[1]
    return set(re.findall(r"`(\w+)`", part))


def test_honest_programs_are_scored(player: Player) -> None:
    assert player.honest() == ["passed", "passed", "wrong"]


@pytest.mark.parametrize("name", ["endless_loop", "memory_bomb", "output_flood", "equal_to_everything"])
def test_limits_and_scores_hold_without_isolation(player: Player, name: str) -> None:
    hostile = next(each for each in HOSTILE if each.name == name)
    answer = player.attack(hostile)
    assert answer["verdict"] in hostile.verdicts
    assert left_behind(player, answer["uid"]) == []


def test_the_page_names_programs_that_there_are() -> None:
    assert SURE | {"daemon"} <= named_on_the_page() <= {hostile.name for hostile in HOSTILE}


@pytest.mark.long
def test_without_isolation_programs_get_through(player: Player) -> None:
    through, left = set(), set()
    for hostile in HOSTILE:
        if hostile.is_bounded_alone:
            answer = player.attack(hostile)
            if is_escape(answer):
                through.add(hostile.name)
            elif hostile.name == "daemon" and left_behind(player, answer["uid"]):
                left.add(hostile.name)
    assert through >= SURE
    assert left == {"daemon"}
    time.sleep(9)  # the daemon ends by itself


def test_it_says_what_it_does_not_stop() -> None:
    assert all(sentence in what_weak_does_not_stop() for sentence in NOT_STOPPED)
