"""The vanilla router, on views alone."""

from __future__ import annotations

import pytest

from tailrace.core.ids import InstanceId
from tailrace.core.policy import InstanceView
from tailrace.policies.routing.least_loaded import LeastLoaded


def views(*loads: int, capacity: int = 8) -> list[InstanceView]:
    return [InstanceView(instance=InstanceId(i), num_running=n, capacity=capacity) for i, n in enumerate(loads)]


@pytest.mark.parametrize(
    ("loads", "chosen"), [((3, 1, 2), 1), ((2, 2, 2), 0), ((8, 7, 9), 1), ((8, 8), None), ((), None)]
)
def test_the_least_loaded_instance_with_room_is_chosen_and_ties_go_to_the_lower_number(
    loads: tuple[int, ...], chosen: int | None
) -> None:
    assert LeastLoaded().choose(views(*loads)) == chosen
