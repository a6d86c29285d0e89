"""The ledger: hand-made cases, random histories against the counting oracle, every state of small worlds.

The oracle, extended to redundancy and to what has to expire, is stated in ``core/ledger_oracle.py``. ``make
ledger-check`` runs the same checks over a million operations and over larger worlds.
"""

from __future__ import annotations

import json

import pytest

from core.ledger_oracle import Counts, History, check_histories
from core.ledger_worlds import explore
from tailrace.core import codec
from tailrace.core.errors import CoreError, UnknownSubject
from tailrace.core.ids import GroupId
from tailrace.core.ledger.admission import AdmissionRule, LedgerEntry, LedgerRules
from tailrace.core.ledger.ledger import BatchState, Ledger


def g(prompt: int) -> GroupId:
    return GroupId("train", 0, prompt)


def rules(
    batch_size: int,
    max_staleness: int | None,
    *,
    capacity: int | None = None,
    admission: AdmissionRule = AdmissionRule.DEADLINE,
) -> LedgerRules:
    capacity = batch_size if capacity is None else capacity
    return LedgerRules(batch_size=batch_size, max_staleness=max_staleness, capacity=capacity, admission=admission)


def slots(ledger: Ledger) -> dict[int, int]:
    """Prompt number to buffer."""
    ledger.check()
    return {group.prompt: entry.slot for group, entry in ledger.entries.items()}


def reserve_all(ledger: Ledger, **versions: int) -> None:
    for name, version in versions.items():
        ledger.reserve(g(int(name[1:])), version)


def test_a_reservation_takes_the_latest_free_slot_and_the_last_one_closes_admission() -> None:
    ledger = Ledger(rules(1, 2))
    for prompt, slot in ((0, 2), (1, 1), (2, 0)):
        assert ledger.can_reserve(0)
        ledger.reserve(g(prompt), 0)
        assert slots(ledger)[prompt] == slot
    assert not ledger.can_reserve(0)
    with pytest.raises(CoreError, match="no room for group train:0:3"):
        ledger.reserve(g(3), 0)
    assert (ledger.num_reserved, ledger.num_occupied) == (3, 0)


def test_an_instance_below_the_bound_is_refused_and_a_version_to_come_is_an_error() -> None:
    ledger = Ledger(rules(1, 1), current=3)
    assert not ledger.can_reserve(1)
    assert ledger.can_reserve(2)
    with pytest.raises(CoreError, match="version 4 cannot exist"):
        ledger.can_reserve(4)


@pytest.mark.parametrize("admission", [AdmissionRule.DEADLINE, AdmissionRule.ORDER, AdmissionRule.COUNT])
@pytest.mark.parametrize("version", [-1, 4])
def test_a_group_of_a_version_that_does_not_exist_is_not_admitted(admission: AdmissionRule, version: int) -> None:
    ledger = Ledger(rules(1, 1, admission=admission), current=3)
    with pytest.raises(CoreError, match=f"version {version} cannot exist"):
        ledger.reserve(g(0), version)
    assert g(0) not in ledger


@pytest.mark.parametrize("admission", [AdmissionRule.DEADLINE, AdmissionRule.ORDER])
def test_there_is_room_for_one_batch_more_than_the_bound(admission: AdmissionRule) -> None:
    ledger = Ledger(rules(2, 2, admission=admission), current=5)
    assert ledger.overlay().free == [2, 2, 2]
    for prompt in range(6):
        ledger.reserve(g(prompt), 5)
    assert ledger.overlay().free == [0, 0, 0]


def test_a_finished_group_takes_the_earliest_free_slot() -> None:
    ledger = Ledger(rules(1, 2))
    ledger.reserve(g(0), 0)
    ledger.occupy(g(0))
    assert slots(ledger) == {0: 0}
    assert ledger.is_ready
    assert ledger.is_occupied(g(0))
    assert not ledger.is_reserved(g(0))


def test_reservations_move_later_so_that_a_finished_group_trains_first() -> None:
    """Buffers 0, 1, 2 hold the reservations 2, 1, 0. Group 0 finishes in buffer 2; the earliest one that may wait there
    is group 2 of buffer 0, which leaves its place to group 0."""
    ledger = Ledger(rules(1, 2))
    reserve_all(ledger, _0=0, _1=0, _2=0)
    assert ledger.state is BatchState.STUCK
    assert ledger.awaited() == (g(2),)
    ledger.occupy(g(0))
    assert slots(ledger) == {0: 0, 1: 1, 2: 2}
    assert ledger.state is BatchState.READY
    assert ledger.awaited() == ()


def test_the_movement_is_a_chain() -> None:
    """At batch 1 with bound 2, versions 0 may wait until buffer 2 and version 1 until buffer 3. Buffers 1, 2, 3 hold
    0 (v0), 2 (v1), 1 (v1). When 1 finishes, 0 may not wait in 3 but 2 may; then 0 may wait in 2; 1 goes to buffer 1."""
    ledger = Ledger(rules(1, 2), current=1)
    reserve_all(ledger, _1=1, _2=1, _0=0)
    assert slots(ledger) == {0: 1, 2: 2, 1: 3}
    ledger.occupy(g(1))
    assert slots(ledger) == {1: 1, 0: 2, 2: 3}


def test_an_aborted_straggler_makes_room_for_reservations_first_and_then_for_finished_groups() -> None:
    """Bound 2 at batch 2; buffers 2, 3, 4. Group 0 (v0) can only be in buffer 2. Aborting it pulls group 1 forward."""
    ledger = Ledger(rules(1, 2), current=2)
    reserve_all(ledger, _0=0, _1=1, _2=2)
    ledger.occupy(g(1))
    assert slots(ledger) == {0: 2, 1: 3, 2: 4}
    assert ledger.state is BatchState.STUCK
    assert ledger.awaited() == (g(0),)
    ledger.delete(g(0))
    assert slots(ledger) == {1: 2, 2: 4}
    assert ledger.is_ready
    assert ledger.can_reserve(1)


def test_a_filtered_group_reopens_admission() -> None:
    ledger = Ledger(rules(1, 0))
    ledger.reserve(g(0), 0)
    ledger.occupy(g(0))
    assert not ledger.can_reserve(0)
    ledger.delete(g(0))
    assert g(0) not in ledger
    assert ledger.can_reserve(0)


def test_a_batch_is_sorted_by_id_and_advances_the_ledger() -> None:
    ledger = Ledger(rules(2, 1), current=1)
    reserve_all(ledger, _7=0, _3=1)
    ledger.occupy(g(7))
    ledger.occupy(g(3))
    done = ledger.consume()
    assert (done.version, done.batch, done.staleness) == (1, (g(3), g(7)), (0, 1))
    assert (done.violations, done.expired) == (0, ())
    assert ledger.current == 2
    assert list(ledger) == []
    with pytest.raises(CoreError, match="batch 2 is waiting"):
        ledger.consume()


def test_a_group_version_may_rise_when_it_finishes_and_never_falls() -> None:
    ledger = Ledger(rules(1, 2), current=2)
    reserve_all(ledger, _0=1, _1=1)
    ledger.occupy(g(0), 2)
    assert ledger.version_of(g(0)) == 2
    with pytest.raises(CoreError, match="cannot fall to 0"):
        ledger.occupy(g(1), 0)
    with pytest.raises(CoreError, match="version 3 cannot exist"):
        ledger.occupy(g(1), 3)
    ledger.check()


@pytest.mark.parametrize("changes", [{"batch_size": 0}, {"max_staleness": -1}, {"capacity": 1}])
def test_rules_without_a_batch_a_bound_or_room_are_refused(changes: dict[str, int]) -> None:
    sound = {"batch_size": 2, "max_staleness": 0, "capacity": 2}
    with pytest.raises(ValueError, match="batch_size must be >= 1, max_staleness >= 0 and capacity >= batch_size"):
        LedgerRules(admission=AdmissionRule.DEADLINE, **{**sound, **changes})


def test_what_is_not_in_order_is_an_error() -> None:
    ledger = Ledger(rules(1, 1))
    with pytest.raises(UnknownSubject):
        ledger.occupy(g(0))
    with pytest.raises(UnknownSubject):
        ledger.delete(g(0))
    ledger.reserve(g(0), 0)
    with pytest.raises(CoreError, match="already"):
        ledger.reserve(g(0), 0)
    ledger.occupy(g(0))
    with pytest.raises(CoreError, match="already"):
        ledger.occupy(g(0))
    with pytest.raises(ValueError, match="capacity"):
        rules(2, 0, capacity=1)


def test_redundancy_without_staleness_trains_the_first_to_finish_and_expires_the_others() -> None:
    ledger = Ledger(rules(2, 0, capacity=4))
    reserve_all(ledger, _0=0, _1=0, _2=0, _3=0)
    assert not ledger.can_reserve(0)
    assert ledger.state is BatchState.STUCK
    for prompt in (3, 1, 0):
        ledger.occupy(g(prompt))
    done = ledger.consume()
    assert done.batch == (g(1), g(3))
    assert done.expired == (g(0), g(2)), "a finished surplus group of bound 0 is as stale as an unfinished one"
    assert list(ledger) == []


def test_surplus_finished_groups_go_to_the_next_batch_and_only_stuck_reservations_expire() -> None:
    """B = 1, C = 2, bound 1: buffers 0 and 1 hold four reservations. Three finish: two in buffer 0, one in buffer 1
    beside the reservation. One trains, its finished neighbour moves to the full buffer 1: the reservation leaves."""
    ledger = Ledger(rules(1, 1, capacity=2))
    reserve_all(ledger, _0=0, _1=0, _2=0, _3=0)
    for prompt in (0, 1, 2):
        ledger.occupy(g(prompt))
    assert slots(ledger) == {0: 0, 1: 0, 2: 1, 3: 1}
    done = ledger.consume()
    assert (done.batch, done.expired) == ((g(0),), (g(3),))
    assert slots(ledger) == {1: 1, 2: 1}


def test_reservations_move_later_also_for_a_surplus_group() -> None:
    """B = 1, C = 2, bound 2: six reservations fill buffers 0, 1, 2, the two that finish come to buffer 0. One trains, a
    reservation of buffer 2 leaves for the other, and one of buffer 1 takes that place so that the other trains next."""
    ledger = Ledger(rules(1, 2, capacity=2))
    reserve_all(ledger, _0=0, _1=0, _2=0, _3=0, _4=0, _5=0)
    ledger.occupy(g(0))
    ledger.occupy(g(1))
    assert slots(ledger) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}
    done = ledger.consume()
    assert (done.batch, done.expired) == ((g(0),), (g(5),))
    assert slots(ledger) == {1: 1, 2: 2, 3: 1, 4: 2}
    assert ledger.is_ready


def test_a_surplus_group_changes_places_with_one_that_may_wait_longer() -> None:
    """B = 1, C = 2, bound 2 at batch 2, all finished: 0, 1 of version 1 in buffer 2 and 2, 3 of version 2 in buffer 3.
    0 trains. Buffer 3 is full and the last for 1; 3 may wait until buffer 4 and gives its place up."""
    ledger = Ledger(rules(1, 2, capacity=2), current=2)
    for prompt, version in enumerate((1, 1, 2, 2)):
        ledger.reserve(g(prompt), version)
        ledger.occupy(g(prompt))
    assert slots(ledger) == {0: 2, 1: 2, 2: 3, 3: 3}
    done = ledger.consume()
    assert (done.batch, done.expired) == ((g(0),), ())
    assert slots(ledger) == {1: 3, 2: 3, 3: 4}
    assert ledger.consume().batch == (g(1),), "the oldest version first"


def test_admission_by_count_caps_what_is_in_flight_and_counts_what_is_too_stale() -> None:
    ledger = Ledger(rules(1, 1, admission=AdmissionRule.COUNT))
    reserve_all(ledger, _0=0, _1=0)
    assert not ledger.can_reserve(0)
    assert ledger.state is BatchState.STUCK
    for prompt in (1, 2):
        ledger.occupy(g(prompt))
        assert ledger.consume().violations == 0
        ledger.reserve(g(prompt + 1), ledger.current)
    ledger.occupy(g(0))
    ledger.occupy(g(3))
    done = ledger.consume()
    assert (done.batch, done.staleness, done.violations) == ((g(0),), (2,), 1)
    ledger.check()


def test_in_order_a_batch_waits_for_its_own_groups_and_none_is_above_the_bound() -> None:
    ledger = Ledger(rules(2, 1, admission=AdmissionRule.ORDER))
    reserve_all(ledger, _0=0, _1=0, _2=0)
    for prompt in (2, 1):
        ledger.occupy(g(prompt))
    assert ledger.state is BatchState.STUCK, "two groups are finished, but not the first two"
    assert ledger.awaited() == (g(0),)
    ledger.occupy(g(0))
    assert ledger.consume().batch == (g(0), g(1))
    assert (ledger.state, ledger.num_occupied, ledger.num_reserved) == (BatchState.WAITING, 1, 0)
    assert ledger.can_reserve(0), "batch 1 has a place, and version 0 may be trained there"
    ledger.reserve(g(3), 0)
    assert not ledger.can_reserve(0), "the next place is in batch 2"
    reserve_all(ledger, _4=1, _5=1)
    assert not ledger.can_reserve(1)
    ledger.delete(g(3))
    ledger.occupy(g(4))
    done = ledger.consume()
    assert (done.batch, done.staleness) == ((g(2), g(4)), (1, 0)), "a deleted group leaves its place to the next"
    ledger.check()


def test_in_order_a_full_batch_is_stuck_and_an_overlay_takes_the_earliest_place() -> None:
    ledger = Ledger(rules(2, 1, admission=AdmissionRule.ORDER), current=1)
    reserve_all(ledger, _0=1)
    assert ledger.state is BatchState.WAITING
    overlay = ledger.overlay()
    assert overlay.free == [1, 2]
    overlay.reserve(1)
    assert overlay.free == [0, 2], "its place in line is in batch 1, though it might wait for batch 2"
    assert not overlay.can_reserve(0), "the next place is in batch 2, too late for version 0"
    reserve_all(ledger, _1=1)
    assert not ledger.can_reserve(0)
    assert ledger.state is BatchState.STUCK


def test_a_stored_ledger_in_order_goes_on_in_the_same_order_and_is_refused_when_it_breaks_the_bound() -> None:
    ledger = Ledger(rules(1, 2, admission=AdmissionRule.ORDER))
    reserve_all(ledger, _2=0, _0=0, _1=0)
    ledger.occupy(g(1))
    ledger.occupy(g(2))
    restored = codec.decode(Ledger, json.loads(json.dumps(codec.encode(ledger))))
    assert restored == ledger
    assert restored.consume().batch == (g(2),)
    restored.check()
    assert (restored.num_occupied, restored.num_reserved) == (1, 1)
    data = json.loads(json.dumps(codec.encode(ledger))) | {"current": 1}
    with pytest.raises(CoreError, match="group train:0:1 of version 0 stands too far back, at 2"):
        codec.decode(Ledger, data)


def test_without_a_bound_what_finished_first_trains_first() -> None:
    ledger = Ledger(rules(2, None))
    for prompt in range(5):
        ledger.reserve(g(prompt), 0)
    for prompt in (4, 2, 0):
        ledger.occupy(g(prompt))
    ledger.delete(g(1))
    assert ledger.consume().batch == (g(2), g(4))
    assert ledger.state is BatchState.WAITING
    ledger.occupy(g(3))
    done = ledger.consume()
    assert (done.batch, done.staleness, done.violations) == ((g(0), g(3)), (1, 1), 0)


@pytest.mark.parametrize("max_staleness", [1, None])
@pytest.mark.parametrize("admission", list(AdmissionRule))
def test_an_overlay_admits_what_the_ledger_would_and_leaves_no_trace(
    admission: AdmissionRule, max_staleness: int | None
) -> None:
    capacity = 2 if admission is AdmissionRule.ORDER else 3
    ledger = Ledger(rules(2, max_staleness, capacity=capacity, admission=admission), current=1)
    ledger.reserve(g(0), 0)
    before = codec.encode(ledger)
    overlay = ledger.overlay()
    for prompt, version in enumerate((0, 1, 1, 0, 1, 0, 1), start=1):
        assert overlay.can_reserve(version) == ledger.overlay().can_reserve(version) == ledger.can_reserve(version)
        if overlay.can_reserve(version):
            overlay.reserve(version)
            assert codec.encode(ledger) == before
            ledger.reserve(g(prompt), version)
            before = codec.encode(ledger)
        else:
            with pytest.raises(CoreError, match="no room"):
                overlay.reserve(version)


def test_a_restored_ledger_goes_on_as_if_nothing_had_happened() -> None:
    for seed in range(6):
        for capacity in (2, 4):
            straight = History(rules(2, 3, capacity=capacity), seed).run(400)
            restored = History(rules(2, 3, capacity=capacity), seed, restore_every=3).run(400)
            assert restored.consumptions == straight.consumptions
            assert straight.batches > 5


def test_a_ledger_without_deadlines_is_stored_in_the_order_groups_finished() -> None:
    ledger = Ledger(rules(1, 4, admission=AdmissionRule.COUNT))
    reserve_all(ledger, _0=0, _1=0, _2=0)
    ledger.occupy(g(2))
    ledger.occupy(g(0))
    restored = codec.decode(Ledger, json.loads(json.dumps(codec.encode(ledger))))
    restored.check()
    assert restored == ledger
    assert [restored.consume().batch, restored.consume().batch] == [(g(2),), (g(0),)]


def test_a_stored_ledger_that_breaks_the_bound_is_refused() -> None:
    ledger = Ledger(rules(1, 1))
    ledger.reserve(g(0), 0)
    data = json.loads(json.dumps(codec.encode(ledger)))
    data["current"] = 2
    with pytest.raises(CoreError, match="cannot sit in buffer 1"):
        codec.decode(Ledger, data)


@pytest.mark.parametrize(("max_staleness", "current"), [(0, 0), (1, 1)])
def test_a_group_that_finishes_in_an_overfull_buffer_is_not_put_anywhere(max_staleness: int, current: int) -> None:
    """Two groups share the only place: the next free one is beyond the bound, or there is none."""
    shared = {g(prompt): LedgerEntry(version=0, slot=current) for prompt in range(2)}
    ledger = Ledger(rules(1, max_staleness), current=current, entries=shared)
    with pytest.raises(CoreError, match="no slot for the finished group train:0:0 of version 0"):
        ledger.occupy(g(0))


def test_check_finds_a_group_of_a_version_to_come() -> None:
    ledger = Ledger(rules(1, None))
    ledger.reserve(g(0), 0)
    ledger.check()
    ledger.entries[g(0)].version = 1
    with pytest.raises(CoreError, match="version 1 cannot exist while batch 0 is collected"):
        ledger.check()


def test_check_finds_a_finished_group_that_is_not_counted() -> None:
    ledger = Ledger(rules(1, None))
    ledger.reserve(g(0), 0)
    ledger.occupy(g(0))
    ledger.check()
    ledger._store.occupied.clear()
    with pytest.raises(CoreError, match="the finished groups are not those that say so"):
        ledger.check()


def test_check_finds_a_group_in_the_wrong_order() -> None:
    ledger = Ledger(rules(1, 1))
    reserve_all(ledger, _0=0)
    ledger.occupy(g(0))
    data = json.loads(json.dumps(codec.encode(ledger)))
    data["entries"]["train:0:0"]["slot"] = 1
    with pytest.raises(CoreError, match="behind a free slot"):
        codec.decode(Ledger, data).check()


def test_check_finds_a_finished_group_that_is_missing_from_its_buffer() -> None:
    ledger = Ledger(rules(2, 0))
    reserve_all(ledger, _0=0, _1=0)
    ledger.occupy(g(0))
    ledger.check()
    ledger._store.current.occupied.remove(g(0), ledger.entries[g(0)])
    with pytest.raises(CoreError, match="does not hold the groups that say they are in it"):
        ledger.check()


def test_check_finds_a_ledger_that_collects_another_batch_than_its_first_buffer() -> None:
    ledger = Ledger(rules(1, 1))
    ledger.current = 1
    with pytest.raises(CoreError, match="the first batch to come is 0, not 1"):
        ledger.check()


def test_a_batch_above_the_bound_is_not_trained_even_if_the_ledger_is_broken() -> None:
    ledger = Ledger(rules(1, 0), current=1)
    ledger.reserve(g(0), 1)
    ledger.occupy(g(0))
    ledger.entries[g(0)].version = 0
    with pytest.raises(CoreError, match="1 groups of batch 1 are above the bound"):
        ledger.consume()


@pytest.fixture(scope="module")
def counts() -> Counts:
    return check_histories(seed=20, operations=60_000)


def test_random_histories_agree_with_the_oracle(counts: Counts) -> None:
    """Slot-admit implies oracle-admit; slot-ready equals oracle-ready after every operation; no group above the bound;
    exactly B per batch; no more expired than must; each group ends once. (Asserted while the histories run.)"""
    assert counts.operations >= 60_000
    assert counts.batches > 1_500
    assert counts.expired > 100


def test_admission_is_only_a_little_conservative(counts: Counts) -> None:
    """A reservation never moves others, so some feasible ones are refused; few."""
    assert 0 < counts.refused < 0.04 * counts.asked


@pytest.mark.parametrize(
    ("batch_size", "capacity", "max_staleness", "num_states"),
    [
        (1, 1, 0, 3),
        (2, 3, 0, 10),
        (1, 1, 1, 12),
        (1, 2, 1, 53),
        (2, 2, 1, 53),
        (2, 3, 1, 155),
        (1, 1, 2, 59),
        (1, 2, 2, 656),
        (2, 2, 2, 656),
    ],
)
def test_every_state_of_a_small_world_agrees_with_brute_force(
    batch_size: int, capacity: int, max_staleness: int, num_states: int
) -> None:
    seen, _ = explore(batch_size=batch_size, capacity=capacity, max_staleness=max_staleness)
    assert seen == num_states
