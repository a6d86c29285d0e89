"""Facts about a machine that the journals of its runs do not contain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.config.device_kind import recorded_device
from tailrace.core.length_classes import length_classes
from tailrace.core.outcomes import Part
from tailrace.sim.world import Sharing

_PROMPT_LENGTH = 12
_REPORT_S = 0.05
"""Seconds between two reports of finished responses by a rollout worker."""
_ON_GPU = Sharing(rollout=1.7, training=1.2)
"""Slowdowns on a GPU, if the journals do not tell. Those of runs of a small model on an H200 with MPS
(``benchmarks/results/journals/gpu_steps_h200``: 1.69 and 1.22)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Facts about a machine that its journals do not contain."""

    prompt_length: int
    """Mean tokens of a prompt."""
    max_response_length: int
    kv_capacity: int
    max_running: int
    num_prompts: int
    num_reward_workers: int
    num_test_workers: int = 1
    num_judges: int = 1
    num_replicas: int = 1
    """Replicas of the trainer."""
    report_s: float = 0.0
    shares_prompts: bool = False
    """Whether its engines compute a prompt once for all members of a group."""
    prefill_chunk: int | None = None
    """Most tokens that its engines prefill before one step, padding included; None: no limit and no padding."""
    length_classes: tuple[int, ...] = ()
    """Capacities of the rows that its engines keep the KV cache in; none: they attend to what is held."""
    sharing: Sharing = Sharing()
    """Assumed slowdowns, if rollout and training never ran at the same time in its journals."""

    @property
    def workers(self) -> dict[Part, int]:
        """Workers of each part of a score."""
        counts = (self.num_reward_workers, self.num_test_workers, self.num_judges)
        return dict(zip((Part.FUNCTION, Part.TESTS, Part.JUDGE), counts, strict=True))

    @classmethod
    def of(cls, config: Mapping[str, Any], *, num_prompts: int) -> MachineFacts:
        """Return the machine that the settings of a run describe; ``ValueError`` if a setting is missing."""
        try:
            rollout, data, reward = config["rollout"], config["data"], config["reward"]
            longest = data["max_prompt_length"] + rollout["max_response_length"]
            return cls(
                # Not in the journal. What another number would change, the fitted costs per response make up for.
                prompt_length=min(_PROMPT_LENGTH, data["max_prompt_length"]),
                max_response_length=rollout["max_response_length"],
                kv_capacity=rollout["kv_tokens"] or rollout["max_running"] * longest // 2,
                max_running=rollout["max_running"],
                num_prompts=num_prompts,
                num_reward_workers=reward["workers"],
                num_test_workers=reward.get("code_tests", {}).get("workers") or reward["workers"],
                num_judges=reward.get("judge", {}).get("workers", 1),
                num_replicas=config.get("trainer", {}).get("num_replicas", 1),
                report_s=_REPORT_S,
                shares_prompts=True,
                prefill_chunk=rollout["prefill_chunk"],
                length_classes=length_classes(longest) if _has_rows(config) else (),
                sharing=_ON_GPU if _is_on_gpu(config) else Sharing(),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"the run's config.json does not say what the simulator needs: {error}") from None


def _has_rows(config: Mapping[str, Any]) -> bool:
    """Whether its engines keep the KV cache in rows, one for each response, and not in pages."""
    rollout = config["rollout"]
    decoding = rollout.get("decoding", "plain")  # a run that does not say it is older than pages
    return rollout["engine"] == "native" and (decoding == "plain" or (decoding == "auto" and not _is_on_gpu(config)))


def _is_on_gpu(config: Mapping[str, Any]) -> bool:
    return recorded_device(config).startswith("cuda")
