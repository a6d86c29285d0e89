"""The data plane's view of every source: its prompts, its order, how it is sampled, and where responses lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import TrajectoryId
from tailrace.data.order import Order
from tailrace.data.prompts import PromptSet
from tailrace.engines.contract import Request, Sampling
from tailrace.rewards.outcome import ScoreTask
from tailrace.rewards.plan import RewardPlan
from tailrace.store.payload_store import PayloadStore
from tailrace.trainer.batch import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    prompts: PromptSet
    order: Order
    sampling: Sampling
    budget: int


class Catalogue:
    def __init__(
        self, sources: Mapping[str, Source], store: PayloadStore, decode: Callable[..., str], rewards: RewardPlan
    ) -> None:
        self._sources, self._store, self._decode = sources, store, decode
        self.rewards = rewards

    def offer(self, command: do.RequestPrompts) -> ev.PromptsOffered:
        source = self._sources[command.source]
        offer = source.order.ids(command.epoch, command.offset, command.count)
        names = tuple(source.prompts[prompt].source for _, prompt in offer.prompts)
        return ev.PromptsOffered(
            source=command.source,
            prompts=offer.prompts,
            next_epoch=offer.next_epoch,
            next_offset=offer.next_offset,
            domains=names if any(names) else (),
        )

    def request(self, trajectory: TrajectoryId, start: int) -> Request:
        """What an engine needs to generate a response from its token ``start`` on."""
        source = self._sources[trajectory.group.source]
        prompt = source.prompts[trajectory.group.prompt].tokens
        prefix = self._store.response(trajectory).tokens[:start] if start else prompt[:0]
        return Request(
            trajectory=trajectory, prompt=prompt, prefix=prefix, budget=source.budget, sampling=source.sampling
        )

    def task(self, trajectory: TrajectoryId) -> ScoreTask:
        """What a reward needs to score a finished response."""
        prompt = self._sources[trajectory.group.source].prompts[trajectory.group.prompt]
        tokens = self._store.response(trajectory).tokens
        return ScoreTask(
            trajectory=trajectory,
            row=prompt.row,
            response=self._decode(tokens, skip_special_tokens=True),
            prompt_text=prompt.text,
            prompt_ids=tuple(prompt.tokens.tolist()),
            response_ids=tuple(tokens.tolist()),
            rewards=self.rewards.asked(prompt),
            source=prompt.source,
        )

    def samples(self, command: do.TrainStep) -> tuple[Sample, ...]:
        """What the trainer needs for a step."""
        truncated = set(command.truncated)
        return tuple(
            Sample(
                trajectory=trajectory,
                prompt=self._sources[trajectory.group.source].prompts[trajectory.group.prompt].tokens,
                response=self._store.response(trajectory),
                score=score,
                is_truncated=trajectory in truncated,
            )
            for trajectory, score in zip(command.trajectories, command.scores, strict=True)
        )
