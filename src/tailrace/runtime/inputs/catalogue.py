"""The data plane's view of every source: its prompts, its order, how it is sampled, and where responses lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Part
from tailrace.data.order import PromptOrder
from tailrace.data.prompts import PromptSet
from tailrace.engines.contract import Request, Sampling
from tailrace.observe.prompts.length_trace import LengthTrace
from tailrace.rewards.assignment import RewardAssignment
from tailrace.rewards.score_task import ScoreTask
from tailrace.store.address import address_of
from tailrace.store.payload_store import PayloadStore
from tailrace.store.segment import Tokens
from tailrace.trainer.batch import Sample
from tailrace.workers.reward_tasks import SentTokens, StoredTokens, TokenTask
from tailrace.workers.sample_transfer import SentSamples, StoredSample, StoredSamples


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    prompts: PromptSet
    order: PromptOrder
    sampling: Sampling
    budget: int
    forced_lengths: LengthTrace | None = None
    """Lengths of the responses, instead of those at which the model ends them."""

    def forced_length(self, response: ResponseId) -> int | None:
        return None if self.forced_lengths is None else min(self.budget, self.forced_lengths.length_of(response))


class Catalogue:
    def __init__(
        self, sources: Mapping[str, Source], store: PayloadStore, decode: Callable[..., str], rewards: RewardAssignment
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

    def request(self, response: ResponseId, start: int) -> Request:
        """What an engine needs to generate a response from its token ``start`` on."""
        source = self._sources[response.group.source]
        prompt = source.prompts[response.group.prompt].tokens
        prefix = self._store.response(response).tokens[:start] if start else prompt[:0]
        return Request(
            response_id=response,
            prompt=prompt,
            prefix=prefix,
            budget=source.budget,
            sampling=source.sampling,
            forced_length=source.forced_length(response),
        )

    def has_part(self, response: ResponseId, part: Part) -> bool:
        """Whether the score of a response has this part."""
        return self.rewards.has_part(self._sources[response.group.source].prompts[response.group.prompt], part)

    def task(self, response: ResponseId) -> ScoreTask:
        """What a reward needs to score a finished response, for reward processes that cannot make texts."""
        prompt = self._sources[response.group.source].prompts[response.group.prompt]
        tokens = self._store.response(response).tokens
        return ScoreTask(
            response_id=response,
            row=prompt.row,
            response=self._decode(tokens, skip_special_tokens=True),
            prompt_text=prompt.text,
            prompt_tokens=tuple(prompt.tokens.tolist()),
            response_tokens=tuple(tokens.tolist()),
            rewards=self.rewards.asked(prompt),
            source=prompt.source,
        )

    def sent_task(self, response: ResponseId) -> TokenTask:
        """A response to score, for reward processes that do not see the payload store."""
        return self._token_task(response, _sent(self._store.response(response).tokens))

    def stored_task(self, response: ResponseId) -> TokenTask:
        """A response to score, for reward processes that read the payload store's files."""
        place = StoredTokens(directory=self._store.directory.absolute(), address=address_of(self._store, response))
        return self._token_task(response, place)

    def _token_task(self, response_id: ResponseId, response: SentTokens | StoredTokens) -> TokenTask:
        prompt = self._sources[response_id.group.source].prompts[response_id.group.prompt]
        return TokenTask(
            response_id=response_id,
            row=prompt.row,
            prompt_text=prompt.text,
            prompt=_sent(prompt.tokens),
            response=response,
            rewards=self.rewards.asked(prompt),
            source=prompt.source,
        )

    def sent(self, command: do.Accumulate) -> SentSamples:
        """A batch for a trainer that does not see the payload store."""
        truncated = set(command.truncated)
        samples = tuple(
            Sample(
                response_id=response,
                prompt=self._prompt(response),
                response=self._store.response(response),
                score=score,
                is_truncated=response in truncated,
            )
            for response, score in zip(command.responses, command.scores, strict=True)
        )
        return SentSamples(samples=samples)

    def stored(self, command: do.Accumulate) -> StoredSamples:
        """A batch for a trainer that reads the payload store's files."""
        truncated = set(command.truncated)
        samples = tuple(
            StoredSample(
                response=address_of(self._store, response),
                prompt=self._prompt(response),
                score=score,
                is_truncated=response in truncated,
            )
            for response, score in zip(command.responses, command.scores, strict=True)
        )
        return StoredSamples(directory=self._store.directory.absolute(), samples=samples)

    def _prompt(self, response: ResponseId) -> Tokens:
        return self._sources[response.group.source].prompts[response.group.prompt].tokens


def _sent(tokens: Tokens) -> SentTokens:
    return SentTokens(data=tokens.astype("<i4", copy=False).tobytes())
