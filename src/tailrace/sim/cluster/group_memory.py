"""Where the state of jobs lies on one node group: in the devices, in host memory, or on disk.

No tier ever holds more than it has room for; the disk has room for everything. A transfer is planned when it begins
and noted when it ends, so nothing else may move in between: a node group does one transfer at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tailrace.cluster.events import Direction
from tailrace.cluster.ids import JobId
from tailrace.cluster.job_spec import ALL_PARTS, Parts, StateBytes, StatePart
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
    """Bytes of one part of a job's state in each tier."""

    device: int = 0
    host: int = 0
    disk: int = 0


@dataclass(frozen=True, slots=True)
class Shift:
    """Bytes of a part that a transfer adds to each tier, or takes from it. They sum up to 0."""

    part: StatePart
    device: int = 0
    host: int = 0
    disk: int = 0

    @property
    def num_bytes(self) -> int:
        return (abs(self.device) + abs(self.host) + abs(self.disk)) // 2


@dataclass(frozen=True, slots=True)
class Shifts:
    """What one transfer does."""

    of_parts: tuple[Shift, ...] = ()

    @property
    def num_bytes(self) -> int:
        return sum(shift.num_bytes for shift in self.of_parts)

    def seconds(self, bandwidths: Bandwidths) -> float:
        """Return how long it takes: what comes from or goes to disk is slower."""
        if not self.num_bytes:
            return 0.0
        slow = sum(abs(shift.disk) for shift in self.of_parts)
        return bandwidths.fixed_s + slow / bandwidths.disk + (self.num_bytes - slow) / bandwidths.device


class GroupMemory:
    def __init__(self, group: NodeGroup) -> None:
        self._group = group
        self._jobs: dict[JobId, dict[StatePart, Tiers]] = {}
        self._loaded: JobId | None = None
        """Job whose state was loaded last. What others have on the devices was prefetched."""

    def enter(self, job: JobId, state: StateBytes, *, is_remote: bool) -> None:
        """The job joins. Its state comes from a checkpoint into host memory, or is still on another node group."""
        self._jobs[job] = {}
        for part in ALL_PARTS:
            num_bytes = state.of((part,))
            to_host = 0 if is_remote else min(num_bytes, self._host_room())
            self._jobs[job][part] = Tiers(host=to_host, disk=num_bytes - to_host)

    def leave(self, job: JobId) -> None:
        self._jobs.pop(job, None)
        if self._loaded == job:
            self._loaded = None

    def is_resident(self, job: JobId, parts: Parts) -> bool:
        """Return whether these parts of the job's state are on the devices."""
        return all(self._jobs[job][part].host == self._jobs[job][part].disk == 0 for part in parts)

    def lose_all(self) -> None:
        """The memory of a node is lost: what is left of every job is its checkpoint."""
        self._loaded = None
        for parts in self._jobs.values():
            for part, tiers in parts.items():
                parts[part] = Tiers(disk=tiers.device + tiers.host + tiers.disk)

    def plan(self, job: JobId, direction: Direction, parts: Parts = ALL_PARTS) -> Shifts:
        of_job = {part: self._jobs[job][part] for part in parts}
        match direction:
            case Direction.OFFLOAD:
                return self._outward(of_job)
            case Direction.LOAD:
                wanted = sum(tiers.host + tiers.disk for tiers in of_job.values())
                self._drop_prefetched(job, wanted)
                if wanted > (room := self._device_room()):
                    raise DevicesFull(
                        f"{job} needs {wanted:,} bytes on the devices of {self._group.id}, {room:,} are free"
                    )
                return Shifts(
                    tuple(Shift(part, each.host + each.disk, -each.host, -each.disk) for part, each in of_job.items())
                )
            case Direction.PREFETCH:
                if job == self._loaded:
                    self._drop_prefetched(job, sum(tiers.host + tiers.disk for tiers in of_job.values()))
                return self._nearer(of_job)

    def apply(self, job: JobId, direction: Direction, shifts: Shifts) -> None:
        for shift in shifts.of_parts:
            tiers = self._jobs[job][shift.part]
            tiers.device, tiers.host, tiers.disk = (
                tiers.device + shift.device,
                tiers.host + shift.host,
                tiers.disk + shift.disk,
            )
            assert min(tiers.device, tiers.host, tiers.disk) >= 0, (job, tiers)
        assert min(self._device_room(), self._host_room()) >= 0, (self._group, self._jobs)
        if direction is not Direction.PREFETCH:
            self._loaded = job if direction is Direction.LOAD else None

    def _outward(self, of_job: dict[StatePart, Tiers]) -> Shifts:
        room, shifts = self._host_room(), []
        for part, tiers in of_job.items():
            to_host = min(tiers.device, room)
            room -= to_host
            shifts.append(Shift(part, -tiers.device, to_host, tiers.device - to_host))
        return Shifts(tuple(shifts))

    def _nearer(self, of_job: dict[StatePart, Tiers]) -> Shifts:
        device_room, host_room, shifts = self._device_room(), self._host_room(), []
        for part, tiers in of_job.items():
            from_host = min(tiers.host, device_room)
            from_disk = min(tiers.disk, device_room - from_host)
            to_host = min(tiers.disk - from_disk, host_room + from_host)
            shifts.append(Shift(part, from_host + from_disk, to_host - from_host, -from_disk - to_host))
            device_room, host_room = device_room - from_host - from_disk, host_room + from_host - to_host
        return Shifts(tuple(shifts))

    def _drop_prefetched(self, job: JobId, wanted: int) -> None:
        """What was prefetched for others gives way. That takes no time: it is where it came from, too."""
        for other, parts in self._jobs.items():
            for tiers in parts.values():
                if other not in (job, self._loaded) and tiers.device and wanted > self._device_room():
                    to_host = min(tiers.device, self._host_room())
                    tiers.host, tiers.disk = tiers.host + to_host, tiers.disk + tiers.device - to_host
                    tiers.device = 0

    def _device_room(self) -> int:
        return _room(self._group.device_bytes, sum(tiers.device for tiers in self._every()))

    def _host_room(self) -> int:
        return _room(self._group.host_bytes, sum(tiers.host for tiers in self._every()))

    def _every(self) -> Iterator[Tiers]:
        return (tiers for parts in self._jobs.values() for tiers in parts.values())


def _room(capacity: int | None, used: int) -> int:
    return 2**63 if capacity is None else capacity - used
