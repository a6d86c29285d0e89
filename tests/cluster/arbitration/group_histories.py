"""Short histories of one node group, told by hand."""

from __future__ import annotations

from tailrace.cluster import commands as do
from tailrace.cluster.arbitration.expected import ExpectedPhase
from tailrace.cluster.arbitration.group_queue import GroupQueue
from tailrace.cluster.arbitration.requests import PhaseRequest
from tailrace.cluster.arbitration.setup_costs import JobState
from tailrace.cluster.events import Direction, TransferMeasured
from tailrace.cluster.ids import JobId, NodeGroupId, TenantId
from tailrace.cluster.settings import ClusterRules, Transfers

G0 = NodeGroupId("g0")
A, B, C = JobId("a"), JobId("b"), JobId("c")
OFFLOAD, LOAD, PREFETCH = Direction
SETUP = Transfers(fixed_s=5.0)


class History:
    """Gives each fact its time, checks the invariants after it, and names the commands shortly."""

    def __init__(self, rules: ClusterRules) -> None:
        self.queue = GroupQueue(G0, rules)
        self.transfers: dict[tuple[JobId, Direction], int] = {}
        """Number of the newest transfer of each kind."""

    def ask(
        self,
        job: JobId,
        now: float,
        operations_s: tuple[float, ...] = (10.0,),
        *,
        tenant: str = "t",
        slack_s: float = 0,
    ) -> list[str]:
        request = PhaseRequest(
            job=job, tenant=TenantId(tenant), asked_at=now, operations_s=operations_s, slack_s=slack_s
        )
        return self._told(self.queue.ask(request, now))

    def expect(self, **asks_at: float) -> None:
        """Jobs that will ask at these times, and are given up 100 s later."""
        phases = [
            ExpectedPhase(owner=JobState(JobId(job)), tenant=TenantId("t"), asks_at=at, given_up_at=at + 100)
            for job, at in asks_at.items()
        ]
        self.queue.expect({}, phases)

    def ended(
        self, job: JobId, now: float, *, seconds: float = 10.0, failed: bool = False, next_in_s: float | None = None
    ) -> list[str]:
        return self._told(self.queue.ended(job, seconds, failed, next_in_s, now))

    def moved(
        self, job: JobId, direction: Direction, now: float, *, seconds: float = 5.0, transfer: int | None = None
    ) -> list[str]:
        """``transfer``: None: the newest one of this job in this direction."""
        number = self.transfers.get((job, direction), 0) if transfer is None else transfer
        report = TransferMeasured(job=job, group=G0, transfer=number, direction=direction, num_bytes=0, seconds=seconds)
        return self._told(self.queue.transferred(report, now))

    def leave(self, job: JobId, now: float) -> list[str]:
        return self._told(self.queue.leave(job, now))

    def lose(self, now: float) -> list[str]:
        return self._told(self.queue.lose(now))

    def restore(self, now: float) -> list[str]:
        return self._told(self.queue.restore(now))

    def tick(self, now: float) -> list[str]:
        return self._told(self.queue.tick(now))

    def waits(self, now: float) -> dict[str, tuple[float, float]]:
        return {wait.what: (wait.since, wait.limit_s) for wait in self.queue.waits(now)}

    def _told(self, commands: list[do.Command]) -> list[str]:
        self.queue.check()
        for command in commands:
            if isinstance(command, do.Offload | do.Load | do.Prefetch):
                self.transfers[command.job, Direction(type(command).__name__.lower())] = command.transfer
        return [_short(command) for command in commands]


def _short(command: do.Command) -> str:
    match command:
        case do.GrantLease(job=job, num_operations=num_operations, group=group):
            assert group == G0
            return f"grant {job} {num_operations}"
        case do.Hold(job=job, until=until, group=group):
            assert group == G0
            return f"hold {job} {until}"
        case do.Offload(job=job, group=group) | do.Load(job=job, group=group) | do.Prefetch(job=job, group=group):
            assert group == G0
            return f"{type(command).__name__.lower()} {job}"
        case _:
            raise AssertionError(f"a queue never sends {command!r}")


def computing(rules: ClusterRules, job: JobId = A, operations_s: tuple[float, ...] = (10.0,)) -> History:
    """Return a history in which ``job`` has computed since time 0."""
    history = History(rules)
    assert history.ask(job, -5.0, operations_s) == [f"load {job}"]
    [granted] = history.moved(job, LOAD, 0.0)
    assert granted.startswith(f"grant {job}")
    return history
