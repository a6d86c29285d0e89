"""The ledger's model: it counts instead of arranging, and random histories that hold the ledger to it.

A live group of version V has the deadline V + max_staleness; batch ``cur`` is collected, C is the capacity of a buffer
and B the batch size. An arrangement puts every group into a buffer from ``cur`` to its deadline, at most C into each.
By Hall's theorem on these nested intervals one exists exactly when, for every d >= cur,

    #{groups with deadline <= d}  <=  C * (d - cur + 1).                                                      (H)

*Admission* of a version: (H) holds with it. *Ready*: some arrangement has B finished groups in ``cur``. Those with the
earliest deadlines do best there, so: at least B are finished and, R being all groups but these B, for every d >= cur

    #{R with deadline <= d}  <=  C * (d - cur + 1) - B.

With C = B this says: no reservation with deadline <= cur, at least B finished, the rest feasible later. *Expiry*: after
a batch has left, as many of the others expire as must leave for (H) to hold for ``cur + 1``; no more.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.core import codec
from tailrace.core.ids import GroupId
from tailrace.core.ledger.admission import AdmissionRule, LedgerRules
from tailrace.core.ledger.ledger import Consumption, Ledger


class Oracle:
    """Knows versions and who is finished; nothing of slots."""

    def __init__(self, rules: LedgerRules, current: int = 0) -> None:
        self.rules = rules
        self.current = current
        self.reserved: dict[GroupId, int] = {}
        self.occupied: dict[GroupId, int] = {}

    @classmethod
    def of(cls, ledger: Ledger) -> Oracle:
        oracle = cls(ledger.rules, ledger.current)
        for group, entry in ledger.entries.items():
            (oracle.occupied if entry.is_occupied else oracle.reserved)[group] = entry.version
        return oracle

    def admits(self, version: int) -> bool:
        versions = [*self.reserved.values(), *self.occupied.values(), version]
        return self._fits(versions, taken=0)

    def is_ready(self) -> bool:
        finished, batch_size = sorted(self.occupied.values()), self.rules.batch_size
        rest = [*finished[batch_size:], *self.reserved.values()]
        return len(finished) >= batch_size and self._fits(rest, taken=batch_size)

    def _fits(self, versions: Iterable[int], *, taken: int) -> bool:
        by_version = Counter(versions)
        oldest = self.current - self.rules.max_staleness
        if any(version < oldest for version in by_version):
            return False
        total = taken
        for index in range(self.rules.max_staleness + 1):
            total += by_version[oldest + index]
            if total > self.rules.capacity * (index + 1):
                return False
        return True

    def consume(self, batch: Iterable[GroupId]) -> int:
        """Take the batch out, advance, and return how many of the others have to leave."""
        for group in batch:
            del self.occupied[group]
        self.current += 1
        by_version = Counter([*self.reserved.values(), *self.occupied.values()])
        oldest = self.current - self.rules.max_staleness
        leaving = by_version[oldest - 1]
        kept = 0
        for index in range(self.rules.max_staleness + 1):
            kept += by_version[oldest + index]
            excess = max(0, kept - self.rules.capacity * (index + 1))
            kept, leaving = kept - excess, leaving + excess
        return leaving


@dataclass
class Counts:
    operations: int = 0
    asked: int = 0
    refused: int = 0
    """Admissions refused although feasible: a reservation never moves others."""
    batches: int = 0
    ready_states: int = 0
    expired: int = 0
    consumptions: list[Consumption] = field(default_factory=list)

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


class History:
    """Random routing, completion, aborts, filtering, pulls and training on a strict ledger, all held to the oracle."""

    def __init__(self, rules: LedgerRules, seed: int, *, restore_every: int | None = None) -> None:
        assert rules.admission is AdmissionRule.DEADLINE
        self.random = random.Random(seed)
        self.restore_every = restore_every
        self.ledger, self.oracle = Ledger(rules), Oracle(rules)
        self.instances = [0] * 3
        self.published = 0
        self.counts = Counts()
        self.ended: Counter[GroupId] = Counter()
        self.num_groups = 0
        self.pressure = self.random.choice((6, 8, 24))
        """How much is routed for what finishes: a high one keeps the ledger full."""
        self.eagerness = self.random.choice((0.1, 0.5, 0.9))
        """How quickly training takes a batch that is ready."""

    def run(self, operations: int) -> Counts:
        steps = [self.route] * self.pressure + [self.finish] * 6 + [self.pull, self.publish] * 3
        steps += [self.abort, self.filter]
        while self.counts.operations < operations:
            self.counts.operations += 1
            self.random.choice(steps)()
            if self.is_ready() and self.random.random() < self.eagerness:
                self.counts.operations += 1
                self.train()
                self.is_ready()
            if self.counts.operations % 16 == 0:
                self.ledger.check()
            if self.restore_every and self.counts.operations % self.restore_every == 0:
                self.ledger = codec.decode(Ledger, codec.encode(self.ledger))
        live = set(self.ledger)
        assert not live & set(self.ended)
        assert len(live) + len(self.ended) == self.num_groups
        assert set(self.ended.values()) <= {1}
        return self.counts

    def is_ready(self) -> bool:
        ledger, oracle = self.ledger, self.oracle
        is_ready = oracle.is_ready()
        assert ledger.is_ready == is_ready, ledger
        assert len(ledger.entries) <= (ledger.rules.max_staleness + 1) * ledger.rules.capacity
        assert ledger.num_reserved == len(oracle.reserved)
        assert ledger.num_occupied == len(oracle.occupied)
        self.counts.ready_states += is_ready
        if not oracle.reserved and not is_ready:
            assert ledger.can_reserve(ledger.current), "nothing is in flight and nothing may start"
        return is_ready

    def route(self) -> None:
        version = self.random.choice(self.instances)
        is_admitted, is_feasible = self.ledger.can_reserve(version), self.oracle.admits(version)
        assert is_admitted == self.ledger.overlay().can_reserve(version)
        assert is_feasible or not is_admitted
        self.counts.asked += 1
        self.counts.refused += is_feasible and not is_admitted
        if is_admitted:
            group = GroupId("train", 0, self.num_groups)
            self.num_groups += 1
            self.ledger.reserve(group, version)
            self.oracle.reserved[group] = version

    def finish(self) -> None:
        if self.oracle.reserved:
            group = self.random.choice(list(self.oracle.reserved))
            version = self.oracle.reserved.pop(group)
            if self.random.random() < 0.2:  # the oldest members were surplus
                version = self.random.randint(version, self.ledger.current)
            self.ledger.occupy(group, version)
            self.oracle.occupied[group] = version

    def abort(self) -> None:
        self.leave(self.oracle.reserved)

    def filter(self) -> None:
        self.leave(self.oracle.occupied)

    def leave(self, groups: dict[GroupId, int]) -> None:
        if groups:
            group = self.random.choice(list(groups))
            del groups[group]
            self.ledger.delete(group)
            self.ended[group] += 1

    def publish(self) -> None:
        self.published = self.random.randint(self.published, self.ledger.current)

    def pull(self) -> None:
        index = self.random.randrange(len(self.instances))
        self.instances[index] = self.random.randint(self.instances[index], self.published)

    def train(self) -> None:
        rules, done = self.ledger.rules, self.ledger.consume()
        assert len(set(done.batch)) == rules.batch_size
        assert done.staleness == tuple(done.version - self.oracle.occupied[group] for group in done.batch)
        assert max(done.staleness) <= rules.max_staleness
        assert min(done.staleness) >= 0
        assert len(done.expired) == self.oracle.consume(done.batch), done
        for group in done.expired:
            del (self.oracle.reserved if group in self.oracle.reserved else self.oracle.occupied)[group]
        self.ended.update([*done.batch, *done.expired])
        self.counts.batches += 1
        self.counts.expired += len(done.expired)
        self.counts.consumptions.append(done)


def random_rules(rng: random.Random) -> LedgerRules:
    batch_size = rng.randint(1, 6)
    return LedgerRules(
        batch_size=batch_size,
        max_staleness=rng.randint(0, 4),
        admission=AdmissionRule.DEADLINE,
        capacity=batch_size + rng.choice((0, 0, 1, 2, batch_size)),
    )


def check_histories(seed: int, operations: int, *, per_history: int = 2_000) -> Counts:
    rng, total = random.Random(seed), Counts()
    while total.operations < operations:
        total += History(random_rules(rng), rng.getrandbits(32)).run(per_history)
    return total
