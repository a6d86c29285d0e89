"""What a run is asked to do, in numbers the core understands. Part of the journal's first event."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSet:
    name: str
    num_prompts: int
    group_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds a wait may last, by what is waited for."""

    start_s: float = 600.0
    progress_s: float = 300.0
    reward_s: float = 60.0
    prompts_s: float = 60.0
    train_s: float = 3600.0
    weights_s: float = 600.0
    checkpoint_s: float = 1800.0
    max_restarts: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The synchronous schedule: generate a batch with version v, train on all of it, go on with version v + 1."""

    train_source: str
    batch_size: int
    group_size: int
    max_steps: int
    num_instances: int = 1
    max_in_flight: int = 256
    """Responses an instance is given at the same time."""
    eval_sets: tuple[EvalSet, ...] = ()
    eval_interval: int | None = None
    save_interval: int | None = None
    is_reward_streamed: bool = True
    """Score a response when it ends, rather than when all of the step have ended."""
    drops_failed_rewards: bool = False
    """A response whose reward failed leaves its group, rather than scoring 0."""
    filters_equal_scores: bool = False
    """Dynamic sampling: a training group whose scores are all equal teaches nothing; another one takes its place."""
    max_useless_groups: int = 1000
    """Groups in a row that may be filtered or dropped before the run gives up."""
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        for name in ("batch_size", "group_size", "num_instances", "max_in_flight"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_steps < 0:
            raise ValueError(f"max_steps must be at least 0, got {self.max_steps}")

    @property
    def trains(self) -> bool:
        """Without steps nothing trains: the evaluation sets are generated and scored once, and the run is over."""
        return self.max_steps > 0

    def is_eval_due(self, version: int) -> bool:
        return bool(self.eval_sets and self.eval_interval) and self._is_due(version, self.eval_interval)

    def is_save_due(self, version: int) -> bool:
        return version > 0 and self._is_due(version, self.save_interval)

    def _is_due(self, version: int, interval: int | None) -> bool:
        return version == self.max_steps or (interval is not None and version % interval == 0)
