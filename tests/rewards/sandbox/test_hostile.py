"""Hostile programs in mode strong: each ends within its limit, scores 0 and leaves nothing.

Honest programs beside them keep their scores. Every program runs as root and as an ordinary user. The default tests run
a part of them, the long ones run all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rewards.sandbox.hostile import HOSTILE, Hostile
from rewards.sandbox.players import (
    USERS,
    Player,
    is_escape,
    left_behind,
    needs_bubblewrap,
    settings_of_the_machine,
)

pytestmark = needs_bubblewrap
MOST_S = 60.0
"""Seconds within which everything has ended, also on a busy machine."""
CHOSEN = [
    pytest.param(hostile, id=hostile.name, marks=() if hostile.is_usual else pytest.mark.long) for hostile in HOSTILE
]


@pytest.fixture(scope="module", params=USERS)
def player(request: pytest.FixtureRequest) -> Iterator[Player]:
    started = Player.start(request.param)
    yield started
    started.close()


@pytest.mark.parametrize("hostile", CHOSEN)
def test_a_hostile_program_scores_nothing_and_leaves_nothing(player: Player, hostile: Hostile) -> None:
    before = settings_of_the_machine()
    answer = player.attack(hostile)
    assert not is_escape(answer)
    assert answer["verdict"] in hostile.verdicts, answer
    assert answer["wall_s"] < MOST_S
    assert left_behind(player, answer["uid"]) == []
    assert answer["new_files"] == 0
    assert settings_of_the_machine() == before


def test_honest_programs_keep_their_scores_beside_hostile_ones(player: Player) -> None:
    for name in ("kills_everybody", "fork_bomb", "memory_bomb"):
        player.attack(next(hostile for hostile in HOSTILE if hostile.name == name))
    assert player.honest() == ["passed", "passed", "wrong"]


def test_a_case_after_a_hostile_one_is_judged_by_itself(player: Player) -> None:
    """The same sandbox goes on, with an empty /tmp and no process of the case before."""
    program = """
import os, time
if input() == 'attack':
    open('left', 'w').write('x')
    if os.fork() == 0:
        os.setsid()
        time.sleep(100)
    os.kill(os.getppid(), 9)
    time.sleep(100)
print(os.listdir('/tmp'), sum(name.isdecimal() for name in os.listdir('/proc')))
"""
    cases: list[dict[str, object]] = [{"stdin": "attack\n", "stdout": ""}, {"stdin": "rest\n", "stdout": "[] 2\n"}]
    assert player.play(program, cases, stop=False, limit_s=3.0)["verdicts"] == ["time", "passed"]


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) >= 40
    assert len({hostile.name for hostile in HOSTILE}) == len(HOSTILE)
    assert sum(hostile.is_usual for hostile in HOSTILE) >= len(HOSTILE) / 3
