"""Settings of a run on a Ray cluster (`runtime = "ray"`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from tailrace.config.section import Common, Section

WorkerKind = Literal["rollout", "training", "reward", "tests", "judge"]


class RayResources(Section):
    """What Ray reserves for each worker of this kind."""

    cpus: PositiveFloat = 1.0
    """CPUs that Ray reserves for each worker of this kind."""
    gpus: NonNegativeFloat | None = None
    """GPUs that Ray reserves for each worker of this kind. Default: for rollout, training and judge by the device plan
    (see `schedule.placement` and `reward.judge.placement`) if the cluster has GPUs, else 0."""
    custom: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Other resources that Ray reserves for each worker of this kind, by the names of `ray start --resources`. So
    workers can be kept on nodes that have them."""


class RaySettings(Section):
    """The Ray cluster of a run with `runtime = "ray"`."""

    address: Common[str | None] = None
    """Address of the Ray cluster, such as `10.0.0.1:6379`, or `auto` for the one that this machine belongs to. `local`:
    start Ray on this machine for this run. Default: the environment variable RAY_ADDRESS, else `local`."""
    rollout: RayResources = RayResources()
    training: RayResources = RayResources()
    reward: RayResources = RayResources(cpus=0.5)
    tests: RayResources = RayResources()
    judge: RayResources = RayResources()
    one_node: Common[tuple[WorkerKind, ...]] = ("training",)
    """Kinds of workers that must all run on one node. Ray reserves their CPUs and GPUs together."""

    checkpoints: Literal["shared", "gathered"] = "shared"
    """How checkpoints reach `output_dir`: `shared`, the training worker writes them there, so its node and the
    controller's must share that folder; `gathered`, it writes to its own disk and copies them to the controller's node.
    """

    @property
    def resources(self) -> dict[str, RayResources]:
        """What each kind of worker needs."""
        return {
            "rollout": self.rollout,
            "training": self.training,
            "reward": self.reward,
            "tests": self.tests,
            "judge": self.judge,
        }
