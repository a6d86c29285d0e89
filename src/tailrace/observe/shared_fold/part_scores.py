"""Scores that come in parts, put together for observers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tailrace.core.commands import Score
from tailrace.core.events import ResponsesScored, Scored
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.responses.part_score import PartScore, combined
from tailrace.observe.shared_fold.news import News
from tailrace.observe.shared_fold.records import PartRecord, ResponseRecord, RunState
from tailrace.observe.shared_fold.responses import ResponseRecords

_TOTALS = "source/"
"""Extras whose names begin so are totals over the parts of a score. Others belong to one part."""


class PartScores:
    """Owns the parts of scores that are awaited."""

    def __init__(self, state: RunState, responses: ResponseRecords) -> None:
        self._state, self._responses = state, responses
        self._num_awaited: dict[tuple[str, Part], int] = {}
        """Scores that await this part, by the source of their prompts; no entry is 0."""
        for response, parts in state.scoring.items():
            for part in parts:
                self._count(response, part, 1)

    @property
    def is_alone(self) -> bool:
        """Whether nothing but scoring goes on: no response is being generated, and the trainer neither works nor
        starts."""
        state = self._state
        return not (self._responses.generating or state.orders or state.is_trainer_starting)

    def awaited_of(self, source: str) -> tuple[Part, ...]:
        """The parts that some score of this source awaits."""
        return tuple(part for name, part in self._num_awaited if name == source)

    def awaited_sources(self) -> dict[str, None]:
        """The sources of which some score is awaited."""
        return dict.fromkeys(source for source, _ in self._num_awaited)

    def is_awaited(self, part: Part) -> bool:
        """Whether any score awaits this part."""
        return any(part is other for _, other in self._num_awaited)

    def ask(self, command: Score) -> None:
        for response in command.responses:
            awaited = self._state.scoring.get(response, ())
            self._state.scoring[response] = (*awaited, command.part)
            self._count(response, command.part, 1)

    def take(self, event: ResponsesScored, news: News) -> None:
        """Take the parts that came back, and note the scores that are whole now."""
        scoring = self._state.scoring
        for scored in event.scores:
            awaited = scoring.get(scored.response, ())
            if event.part not in awaited:
                continue  # it repeats an earlier report
            if left := tuple(part for part in awaited if part is not event.part):
                scoring[scored.response] = left
            else:
                del scoring[scored.response]
            self._count(scored.response, event.part, -1)
            response = self._state.responses.get(scored.response)
            news.parts.append((scored, response))
            if response is not None:
                _add_part(response, event.part, scored)
            if not left:
                news.scored.append((scored if response is None else _whole_score(response, scored), response))

    def resume(self, parts: Collection[Part], news: News) -> None:
        """Nothing that was asked for will be answered. ``parts``: those that scores have from now on; what came of
        others does not count, and a score that misses nothing else is whole."""
        self._state.scoring.clear()
        self._num_awaited.clear()
        for response in self._state.responses.values():
            if response.parts and response.outcome is None:
                response.parts = tuple(each for each in response.parts if each.part in parts)
                if len(response.parts) == len(parts):
                    news.scored.append((_concluded(response), response))

    def _count(self, response: ResponseId, part: Part, change: int) -> None:
        key = response.group.source, part
        count = self._num_awaited.get(key, 0) + change
        if count:
            self._num_awaited[key] = count
        else:
            del self._num_awaited[key]


def _add_part(response: ResponseRecord, part: Part, scored: Scored) -> None:
    """Note one part of the score of a response."""
    record = PartRecord(
        part=part,
        outcome=scored.outcome,
        score=scored.score,
        seconds=scored.seconds,
        queued_s=scored.queued_s,
        detail=scored.detail,
    )
    response.parts = (*response.parts, record)
    response.extras = _joined(response.extras, scored.extras)


def _whole_score(response: ResponseRecord, last: Scored) -> Scored:
    """Conclude the score of a response whose parts are all there, and return it as if it had one part. ``last``: the
    part that came last."""
    whole = _concluded(response)
    if len(response.parts) == 1 and whole.outcome is last.outcome:
        return last
    return replace(whole, detail=whole.detail or last.detail)


def _concluded(response: ResponseRecord) -> Scored:
    """Note the score of a response whose parts are all there, and return it as if it had one part."""
    parts = response.parts
    outcome, response.score = combined([PartScore(each.part, each.outcome, each.score) for each in parts])
    response.outcome = outcome
    details = [each.detail for each in parts if each.outcome is outcome is not Outcome.OK]
    return Scored(
        response=response.id,
        outcome=outcome,
        score=response.score,
        seconds=response.reward_s,
        queued_s=max(each.queued_s for each in parts),
        extras=response.extras,
        detail=details[0] if details else "",
    )


def _joined(ours: tuple[tuple[str, float], ...], more: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
    if not ours:
        return more
    found = dict(ours)
    for name, value in more:
        found[name] = found.get(name, 0.0) + value if name.startswith(_TOTALS) else value
    return tuple(found.items())
