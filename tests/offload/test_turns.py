from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from tailrace.offload.residency import resident_places
from tailrace.offload.turns import NUM_BUFFERS, Turns, pass_seconds


@pytest.mark.parametrize("num_layers", [1, 2, 7, 28])
def test_resident_layers_are_as_many_as_asked_for_and_evenly_spread(num_layers: int) -> None:
    for num_resident in range(num_layers + 1):
        places = resident_places(num_layers, num_resident)
        assert sum(places) == num_resident
        offloaded = [place for place, stays in enumerate(places) if not stays]
        around = [*offloaded, *(place + num_layers for place in offloaded[:1])]
        gaps = [after - before for before, after in pairwise(around)]
        assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("num_resident", [-1, 5])
def test_a_number_of_resident_layers_that_cannot_be_is_refused(num_resident: int) -> None:
    with pytest.raises(ValueError, match=f"from 0 to 4, got {num_resident}"):
        resident_places(4, num_resident)


def walk(turns: Turns, is_resident: tuple[bool, ...], num_passes: int) -> int:
    """Enter all layers in order, and check what the buffers hold. Returns the number of copies."""
    held: dict[int, int] = {}
    num_copies = 0
    for step in range(num_passes * len(is_resident)):
        layer = step % len(is_resident)
        for copy in turns.enter(layer):
            assert held.get(copy.buffer) != layer, "a layer that is about to compute is overwritten"
            assert 0 <= copy.buffer < NUM_BUFFERS
            assert not is_resident[copy.layer]
            held[copy.buffer] = copy.layer
            num_copies += 1
        assert turns.enter(layer) == []
        if not is_resident[layer]:
            assert held[turns.buffer_of(layer)] == layer
    return num_copies


@pytest.mark.parametrize("num_layers", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("is_overlapped", [True, False])
def test_every_layer_finds_its_weights_whichever_layers_are_resident(num_layers: int, is_overlapped: bool) -> None:
    for chosen in range(2**num_layers):
        is_resident = tuple(bool(chosen >> place & 1) for place in range(num_layers))
        num_offloaded = is_resident.count(False)
        num_copies = walk(Turns(is_resident, is_overlapped=is_overlapped), is_resident, num_passes=5)
        if num_offloaded <= NUM_BUFFERS and is_overlapped:
            assert num_copies == num_offloaded, "what fits the buffers is copied once"
        else:
            assert num_copies <= 5 * num_offloaded + NUM_BUFFERS, "each layer is copied once per pass"


def test_the_next_offloaded_layer_is_copied_while_one_computes() -> None:
    turns = Turns([False] * 4)
    assert [copy.layer for copy in turns.enter(0)] == [0, 1]
    assert [copy.layer for copy in turns.enter(1)] == [2]
    assert [copy.layer for copy in turns.enter(2)] == [3]
    assert [copy.layer for copy in turns.enter(3)] == [0], "the next pass begins with the first layer"


def test_layers_may_be_entered_in_any_order() -> None:
    turns = Turns([False] * 4)
    for layer in (3, 1, 1, 0, 2, 3, 0):
        turns.enter(layer)
        turns.buffer_of(layer)


@pytest.mark.parametrize("times", [(1.0, 0.3), (1.0, 1.0), (1.0, 1.7), (1.0, 2.5), (1.0, 6.0), (0.0, 1.0)])
def test_no_choice_of_layers_makes_a_pass_shorter_than_the_even_one(times: tuple[float, float]) -> None:
    layer_s, copy_s = times
    for num_layers in range(1, 9):
        for num_resident in range(num_layers + 1):
            every = [
                tuple(place in chosen for place in range(num_layers))
                for chosen in combinations(range(num_layers), num_resident)
            ]
            best = min(pass_seconds(places, layer_s=layer_s, copy_s=copy_s) for places in every)
            found = pass_seconds(resident_places(num_layers, num_resident), layer_s=layer_s, copy_s=copy_s)
            assert found == pytest.approx(best)


def test_layers_side_by_side_would_wait_for_their_copies() -> None:
    side_by_side, even = [True] * 4 + [False] * 4, resident_places(8, 4)
    assert pass_seconds(even, layer_s=1.0, copy_s=2.0) == pytest.approx(8.0)
    assert pass_seconds(side_by_side, layer_s=1.0, copy_s=2.0) > 9.0


def test_seconds_of_a_pass_are_those_of_what_is_slower() -> None:
    none, every = resident_places(8, 0), resident_places(8, 8)
    assert pass_seconds(every, layer_s=1.0, copy_s=9.0) == pytest.approx(8.0)
    assert pass_seconds(none, layer_s=1.0, copy_s=0.5) == pytest.approx(8.0)
    assert pass_seconds(none, layer_s=1.0, copy_s=3.0) == pytest.approx(24.0)
    assert pass_seconds(none, layer_s=1.0, copy_s=3.0, is_overlapped=False) == pytest.approx(32.0)
    assert pass_seconds(every, layer_s=1.0, copy_s=3.0, outside_s=2.0) == pytest.approx(10.0)
