"""The training room: batches that wait for a step, the trainer, published versions and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tailrace.core import commands as do
from tailrace.core.ids import GroupId, Version
from tailrace.core.lost_workers import Losses
from tailrace.core.requests import OpenRequest
from tailrace.core.run.waits import Wait
from tailrace.core.schedule import Limits
from tailrace.core.training.saves import Saves
from tailrace.core.training.step import Step


@dataclass(slots=True, kw_only=True)
class Training:
    """State of the training room."""

    version: Version = Version(0)
    """Completed optimizer steps."""
    published: Version = Version(0)
    """Newest version that instances can pull. 0: the version they start with. -1: none, after a restart."""
    can_pull: bool = True
    """False from the loss of the trainer until it publishes again, because published weights are lost with it."""
    batches: list[tuple[GroupId, ...]] = field(default_factory=list)
    """Full batches that are not trained yet. The first is for the step from ``version``."""
    trainer: Version | None = None
    """Version that the trainer holds; None until it has started."""
    is_trainer_asked: bool = False
    """Whether the trainer was asked to start."""
    incarnation: int = 0
    """Number of its last start. Reports of an earlier start are refused."""
    killed_at: float | None = None
    """When ``KillTrainer`` was sent; None: it was not, or ``TrainerLost`` has arrived."""
    heard_at: float = 0.0
    """When the trainer was asked to start, or last reported a version."""
    losses: Losses = field(default_factory=Losses)
    """How often the trainer was lost since the last step."""
    step: Step = field(default_factory=Step)
    """The optimizer step from ``version``, as far as it was begun."""
    publishing: OpenRequest | None = None
    """The version that is being published."""
    saving: OpenRequest | None = None
    """The checkpoint that is being written."""
    save_due: Version | None = None
    """Version of which a checkpoint is due. Set until the checkpoint is on disk."""
    saves: Saves = field(default_factory=Saves)
    """The newest checkpoint."""

    # Questions

    @property
    def is_trainer_ready(self) -> bool:
        return self.trainer == self.version and self.killed_at is None

    @property
    def newest_pullable(self) -> Version:
        """Newest version that an instance can hold."""
        # An instance may pull the version that is being published before the core learns that it is published, even
        # if the trainer is lost meanwhile.
        is_announced = self.publishing is None and self.can_pull
        return Version(max(self.published, 0)) if is_announced else self.version

    @property
    def num_batches(self) -> int:
        return len(self.batches)

    @property
    def num_waiting_groups(self) -> int:
        """Groups of batches that are not trained yet."""
        return sum(len(batch) for batch in self.batches)

    def is_device_free(self, is_evaluated: bool) -> bool:
        """Whether colocated rollout may use the device: no batch waits, or the next step waits for an evaluation."""
        return self.published == self.version and (not self.batches or not is_evaluated)

    @property
    def is_open_for_pulls(self) -> bool:
        """Whether instances can pull the published version."""
        return self.can_pull

    @property
    def is_starved(self) -> bool:
        """Whether the trainer is ready and has no batch."""
        return self.is_trainer_ready and not self.batches

    @property
    def is_saved(self) -> bool:
        """Whether no checkpoint is due or being written."""
        return self.save_due is None

    @property
    def is_stepping(self) -> bool:
        """Whether the trainer has something to do for an optimizer step."""
        return self.step.is_busy

    @property
    def num_streamed_groups(self) -> int:
        """Groups of the step in progress that were chosen before its batch was full."""
        return len(self.step.groups)

    @property
    def has_streamed(self) -> bool:
        """Whether a piece of the next step was chosen already."""
        return bool(self.step.streamed)

    def is_open_for_pieces(self, is_evaluated: bool) -> bool:
        """Whether the trainer may train pieces of a batch that is not full yet. A version is published, evaluated and
        saved before the next step begins: no checkpoint is written in the middle of a step."""
        is_published = self.published == self.version and self.can_pull and self.publishing is None
        return is_published and self.is_saved and is_evaluated and self.is_trainer_ready and not self.step.is_finishing

    def awaits_piece(self, is_evaluated: bool) -> bool:
        """Whether the trainer could train a piece now and has nothing to do."""
        is_idle = not self.batches and not self.step.is_busy and self.step.num_sent == len(self.step.streamed)
        return is_idle and self.is_open_for_pieces(is_evaluated)

    @property
    def is_at_rest(self) -> bool:
        """Whether the trainer has ended all that it must, and has nothing to save or cannot save it. A step that waits
        for its round is not ended: its pieces are sent again when the run is continued."""
        can_save = self.is_trainer_ready and self.version > self.saves.version
        return not self.step.is_finishing and self.saving is None and not can_save

    @property
    def last_work(self) -> str:
        """What the trainer must do before the run ends, in words."""
        if self.step.is_finishing:
            return f"optimizer step {self.version + 1} and its checkpoint"
        return f"checkpoint of step {self.version}"

    def is_due(self, is_evaluated: bool) -> bool:
        """Whether the state of the trainer allows the whole of the next step."""
        return not self.step.is_finishing and self.is_trainer_ready and is_evaluated and bool(self.batches)

    def failure(self, limits: Limits) -> str | None:
        """Return why the run must fail; None if it can continue."""
        count = self.losses.count
        if count <= limits.max_restarts:
            return None
        times = "1 time" if count == 1 else f"{count} times"
        return f"the trainer was lost {times} within one step; the last time: {self.losses.last}"

    def waits(self, limits: Limits, edition: int) -> Iterator[Wait]:
        """Yield what the trainer was asked to do. It saves and steps one after the other, and publishes beside both."""
        can_restart = edition > 1
        if self.killed_at is not None:
            # If even the end of its process is not confirmed, a restart would not help: the run fails.
            yield Wait(what="end of the trainer", since=self.killed_at, limit_s=limits.start_s)
            return
        if self.is_trainer_asked and not self.is_trainer_ready:
            yield self._trainer_wait(limits, can_restart)
        if self.step.is_busy and not (can_restart and self.saving is not None):
            what = f"optimizer step {self.version + 1}"
            if not self.step.is_finishing:
                what = f"piece {self.step.num_done + 1} of {what}"
            if can_restart and self.publishing is not None:
                what += f" and, before it, publishing of version {self.publishing.version}"
            yield Wait(what=what, since=self.step.since, limit_s=limits.train_s, is_trainer=can_restart)
        if (request := self.publishing) is not None:
            what = f"publishing of version {request.version}"
            yield Wait(what=what, since=request.since, limit_s=limits.weights_s, is_trainer=can_restart)
        if (request := self.saving) is not None:
            what = f"checkpoint of step {request.version}"
            yield Wait(what=what, since=request.since, limit_s=limits.checkpoint_s, is_trainer=can_restart)

    def _trainer_wait(self, limits: Limits, can_restart: bool) -> Wait:
        what, limit_s = "start of the trainer", limits.start_s
        if self.trainer is not None:
            what, limit_s = f"the trainer to take step {self.trainer + 1} of {self.version} again", limits.train_s
        return Wait(what=what, since=self.heard_at, limit_s=limit_s, is_trainer=can_restart)

    # Notices

    def add_batch(self, batch: tuple[GroupId, ...]) -> None:
        """Add a full batch."""
        self.batches.append(batch)

    def add_piece(self, piece: tuple[GroupId, ...]) -> None:
        """Add a piece of the batch that is being collected."""
        self.step.streamed.append(piece)

    def kill(self, reason: str, now: float) -> Iterator[do.Command]:
        """Kill a trainer that does not answer."""
        if self.killed_at is None:
            self.killed_at = now
            yield do.KillTrainer(reason=reason)
