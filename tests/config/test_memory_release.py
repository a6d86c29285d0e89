"""Who gives memory of a device back, and when: what the settings ask for."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.config.load import check
from tailrace.config.memory_release import leaves_between_pieces, releases_memory

TWO: dict[str, Any] = {
    "rollout": {"num_instances": 2},
    "trainer": {"num_ranks": 2, "num_replicas": 2},
}
LENDING = {"stream": "always", "lending": "fixed"}


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, (False, False)),
        ({"schedule": {"placement": "colocated"}}, (True, False)),
        ({"schedule": {"stream": "always"}}, (False, False)),
        ({"schedule": {"stream": "always"}, "trainer": {"gradients_device": "cpu"}}, (False, True)),
        (TWO | {"schedule": LENDING}, (True, False)),
        (TWO | {"schedule": LENDING | {"placement": "colocated"}}, (True, True)),
        (TWO | {"schedule": {"placement": "colocated"}}, (True, False)),
    ],
)
def test_training_gives_memory_back_between_pieces_if_gradients_are_away_or_a_lent_instance_may_need_it(
    sections: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    settings = check(sections)
    assert (releases_memory(settings), leaves_between_pieces(settings)) == expected
