"""Every state a small strict ledger can ever reach, each held to the oracle and to brute force.

Seen from the batch that is collected, and with groups of equal version, place and progress taken for equal, the states
are finitely many: from the empty ledger all operations are tried in every state until no new state appears. Instances
may have any version within the bound; ``occupy`` is tried with every version it may have risen to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

from core.ledger_oracle import Oracle
from tailrace.core.ids import GroupId
from tailrace.core.ledger.admission import AdmissionRule, LedgerEntry, LedgerRules
from tailrace.core.ledger.ledger import Ledger

State = tuple[tuple[int, bool, int], ...]
"""(version, is_occupied, slot) of each live group, sorted, while batch ``max_staleness`` is collected."""


def build(rules: LedgerRules, state: State) -> Ledger:
    entries = {GroupId("train", 0, index): LedgerEntry(*entry) for index, entry in enumerate(state)}
    return Ledger(rules, rules.max_staleness, entries)


def seen_from_current(ledger: Ledger) -> State:
    shift = ledger.current - ledger.rules.max_staleness
    return tuple(sorted((e.version - shift, e.is_occupied, e.slot - shift) for e in ledger.entries.values()))


def explore(*, batch_size: int, capacity: int, max_staleness: int) -> tuple[int, int]:
    """Visit and check everything; return the numbers of states and of transitions."""
    rules = LedgerRules(
        batch_size=batch_size, capacity=capacity, max_staleness=max_staleness, admission=AdmissionRule.DEADLINE
    )
    frontier: list[State] = [()]
    seen: set[State] = {()}
    num_transitions = 0
    while frontier:
        for after in successors(rules, frontier.pop()):
            num_transitions += 1
            if after not in seen:
                seen.add(after)
                frontier.append(after)
    return len(seen), num_transitions


def successors(rules: LedgerRules, state: State) -> Iterator[State]:
    ledger = build(rules, state)
    ledger.check()
    oracle = Oracle.of(ledger)
    finished = tuple(sorted(Counter(oracle.occupied.values()).items()))
    unfinished = tuple(sorted(Counter(oracle.reserved.values()).items()))
    is_ready = ledger.is_ready
    assert is_ready == oracle.is_ready() == can_be_ready(rules, finished, unfinished), ledger
    for version in range(rules.max_staleness + 1):
        if ledger.can_reserve(version):
            assert oracle.admits(version)
            twin = build(rules, state)
            twin.reserve(GroupId("new", 0, 0), version)
            yield seen_from_current(twin)
    for index in [state.index(entry) for entry in set(state)]:
        group = GroupId("train", 0, index)
        twin = build(rules, state)
        twin.delete(group)
        yield seen_from_current(twin)
        version, is_occupied, _ = state[index]
        for raised in () if is_occupied else range(version, rules.max_staleness + 1):
            twin = build(rules, state)
            twin.occupy(group, raised)
            yield seen_from_current(twin)
    if is_ready:
        done = ledger.consume()
        assert len(done.batch) == rules.batch_size
        assert len(done.expired) == oracle.consume(done.batch)
        yield seen_from_current(ledger)


Versions = tuple[tuple[int, int], ...]
"""(version, how many groups), while batch ``max_staleness`` is collected: a version is also its last buffer's index."""


@cache
def can_be_ready(rules: LedgerRules, finished: Versions, unfinished: Versions) -> bool:
    """Try all arrangements."""
    pool = [(last, True) for last, n in finished for _ in range(n)]
    pool += [(last, False) for last, n in unfinished for _ in range(n)]

    @cache
    def place(index: int, loads: tuple[int, ...], num_finished: int) -> bool:
        if index == len(pool):
            return num_finished >= rules.batch_size
        last, is_finished = pool[index]
        for buffer in range(last + 1):
            if loads[buffer] < rules.capacity:
                after = (*loads[:buffer], loads[buffer] + 1, *loads[buffer + 1 :])
                if place(index + 1, after, num_finished + (is_finished and buffer == 0)):
                    return True
        return False

    return place(0, (0,) * (rules.max_staleness + 1), 0)
