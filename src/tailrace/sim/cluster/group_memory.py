"""Where the state of jobs lies on one node group: in the devices, in host memory, or on disk.

No tier ever holds more than it has room for; the disk has room for everything. A transfer is planned when it begins
and noted when it ends, so nothing else may move in between: a node group does one transfer at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.cluster.events import Direction
from tailrace.cluster.ids import JobId
from tailrace.cluster.settings import NodeGroup


class DevicesFull(RuntimeError):
    """The devices do not have room for what shall be loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidths:
    """Bytes per second of a node group."""

    device: float
    """Between devices and host memory."""
    disk: float
    """To and from disk, and from another node group."""
    fixed_s: float = 0.0
    """Seconds that every transfer takes besides."""


@dataclass(slots=True)
class Tiers:
    """Bytes of one job in each tier."""

    device: int = 0
    host: int = 0
    disk: int = 0


@dataclass(frozen=True, slots=True)
class Shift:
    """Bytes that a transfer adds to each tier, or takes from it. They sum up to 0."""

    device: int = 0
    host: int = 0
    disk: int = 0

    @property
    def num_bytes(self) -> int:
        return (abs(self.device) + abs(self.host) + abs(self.disk)) // 2

    def seconds(self, bandwidths: Bandwidths) -> float:
        """Return how long it takes: what comes from or goes to disk is slower."""
        if not self.num_bytes:
            return 0.0
        slow = abs(self.disk)
        return bandwidths.fixed_s + slow / bandwidths.disk + (self.num_bytes - slow) / bandwidths.device


class GroupMemory:
    def __init__(self, group: NodeGroup) -> None:
        self._group = group
        self._jobs: dict[JobId, Tiers] = {}

    def enter(self, job: JobId, num_bytes: int, *, is_remote: bool) -> None:
        """The job joins. Its state comes from a checkpoint into host memory, or is still on another node group."""
        to_host = 0 if is_remote else min(num_bytes, self._host_room())
        self._jobs[job] = Tiers(host=to_host, disk=num_bytes - to_host)

    def leave(self, job: JobId) -> None:
        self._jobs.pop(job, None)

    def is_resident(self, job: JobId) -> bool:
        tiers = self._jobs[job]
        return tiers.host == tiers.disk == 0

    def lose_all(self) -> None:
        """The memory of a node is lost: what is left of every job is its checkpoint."""
        for job, tiers in self._jobs.items():
            self._jobs[job] = Tiers(disk=tiers.device + tiers.host + tiers.disk)

    def plan(self, job: JobId, direction: Direction) -> Shift:
        tiers = self._jobs[job]
        match direction:
            case Direction.OFFLOAD:
                to_host = min(tiers.device, self._host_room())
                return Shift(device=-tiers.device, host=to_host, disk=tiers.device - to_host)
            case Direction.LOAD:
                wanted = tiers.host + tiers.disk
                if wanted > (room := self._device_room()):
                    raise DevicesFull(
                        f"{job} needs {wanted:,} bytes on the devices of {self._group.id}, {room:,} are free"
                    )
                return Shift(device=wanted, host=-tiers.host, disk=-tiers.disk)
            case Direction.PREFETCH:
                return self._nearer(tiers)

    def apply(self, job: JobId, shift: Shift) -> None:
        tiers = self._jobs[job]
        tiers.device, tiers.host, tiers.disk = (
            tiers.device + shift.device,
            tiers.host + shift.host,
            tiers.disk + shift.disk,
        )
        assert min(tiers.device, tiers.host, tiers.disk) >= 0, (job, tiers)
        assert min(self._device_room(), self._host_room()) >= 0, (self._group, self._jobs)

    def _nearer(self, tiers: Tiers) -> Shift:
        room = self._device_room()
        from_host = min(tiers.host, room)
        from_disk = min(tiers.disk, room - from_host)
        to_host = min(tiers.disk - from_disk, self._host_room() + from_host)
        return Shift(device=from_host + from_disk, host=to_host - from_host, disk=-from_disk - to_host)

    def _device_room(self) -> int:
        return _room(self._group.device_bytes, sum(tiers.device for tiers in self._jobs.values()))

    def _host_room(self) -> int:
        return _room(self._group.host_bytes, sum(tiers.host for tiers in self._jobs.values()))


def _room(capacity: int | None, used: int) -> int:
    return 2**63 if capacity is None else capacity - used
