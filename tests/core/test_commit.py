"""Committed groups: they are in the current batch, whatever finishes later, under every kind of admission."""

from __future__ import annotations

import pytest

from core.test_ledger import g, rules
from tailrace.core import codec
from tailrace.core.errors import CoreError
from tailrace.core.ledger.admission import AdmissionRule
from tailrace.core.ledger.ledger import Ledger

KINDS = {
    "deadline": rules(2, 1),
    "with redundant groups": rules(2, 1, capacity=4),
    "order": rules(2, 1, admission=AdmissionRule.ORDER),
    "count": rules(2, 1, admission=AdmissionRule.COUNT),
    "no bound": rules(2, None),
}


def finished(kind: str, *prompts: int, reserved: int = 4) -> Ledger:
    """A ledger with groups 0 to ``reserved``, of which these have finished, in this order."""
    ledger = Ledger(KINDS[kind])
    for prompt in range(reserved):
        ledger.reserve(g(prompt), 0)
    for prompt in prompts:
        ledger.occupy(g(prompt))
    return ledger


@pytest.mark.parametrize("kind", KINDS)
def test_committed_groups_are_in_the_batch_with_those_that_finish_later(kind: str) -> None:
    ledger = finished(kind, 0)
    assert ledger.num_uncommitted == 1
    assert ledger.commit(1) == (g(0),)
    assert ledger.num_uncommitted == 0
    ledger.check()
    ledger.occupy(g(1))
    assert ledger.consume().batch == (g(0), g(1))
    assert not ledger.committed


@pytest.mark.parametrize("kind", ["with redundant groups", "count", "no bound"])
def test_a_batch_takes_committed_groups_before_others_that_would_come_first(kind: str) -> None:
    ledger = finished(kind, 2, 0)
    ledger.committed[g(0)] = None
    ledger.occupy(g(1))
    ledger.check()
    assert g(0) in ledger.consume(1).batch


def test_a_commitment_takes_the_groups_that_the_batch_would_take_first() -> None:
    ledger = Ledger(rules(2, 1, capacity=3))
    ledger.reserve(g(0), 0)
    ledger.reserve(g(1), 0)
    for prompt in (0, 1):
        ledger.occupy(g(prompt))
    ledger.consume()
    ledger.reserve(g(2), 1)
    ledger.reserve(g(3), 0)
    ledger.occupy(g(2))
    ledger.occupy(g(3))
    assert ledger.commit(1) == (g(3),), "the oldest version first"
    assert ledger.commit(1) == (g(2),)


def test_commitments_are_named_by_id_and_kept_in_their_order() -> None:
    ledger = finished("no bound", 3, 1, 2)
    assert ledger.commit(2) == (g(1), g(3))
    assert ledger.commit(1) == (g(2),)
    assert list(ledger.committed) == [g(1), g(3), g(2)]


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_groups_are_committed_than_are_finished(kind: str) -> None:
    ledger = finished(kind, 0)
    with pytest.raises(CoreError, match="2 groups cannot be committed: 1 are finished"):
        ledger.commit(2)
    ledger.commit(1)
    with pytest.raises(CoreError, match="1 groups cannot be committed: 0 are finished"):
        ledger.commit(1)


def test_a_committed_group_cannot_leave() -> None:
    ledger = finished("deadline", 0, 1)
    ledger.commit(1)
    with pytest.raises(CoreError, match="is committed to batch 0 and cannot leave it"):
        ledger.delete(g(0))
    ledger.delete(g(1))


def test_a_group_that_cannot_be_trained_is_not_committed() -> None:
    ledger = finished("deadline", 0)
    ledger.committed[g(3)] = None
    with pytest.raises(CoreError, match="committed groups of batch 0 cannot be trained"):
        ledger.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_ledger_has_the_same_commitments(kind: str) -> None:
    ledger = finished(kind, 0)
    ledger.commit(1)
    restored = codec.decode(Ledger, codec.encode(ledger))
    assert restored == ledger
    ledger.occupy(g(1))
    restored.occupy(g(1))
    assert restored.consume() == ledger.consume()
