"""What a row of metrics says about the round of its batch: token times, tokens held, preemptions, sizes of instances.

A round is counted from its opening until the next one opens. Only training responses count. The journal holds no
tokens but reports of them, several each second, and no lengths of prompts:

* A time to first token ends with the first report that has a token, so it is too long by at most one report interval.
* A time per token is the time between two reports of one response, divided by the tokens of the second.
* Tokens held are response tokens that were reported. Those of prompts are not known.
* A preemption counts in the round in which it is reported. Instances count their own since they started.
"""

from __future__ import annotations

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.observe.metrics.memory import Memory, RoundCounts
from tailrace.observe.shared_fold.news import News
from tailrace.observe.shared_fold.records import ResponseRecord
from tailrace.observe.shared_fold.run_fold import RunFold


def note_round(run: RunFold, memory: Memory, news: News) -> None:
    """Count what one message says about the current round."""
    if isinstance(news.message, do.OpenRound):
        memory.round = news.message.round
        memory.rounds[memory.round] = RoundCounts(parallel_size=news.message.parallel_size)
    elif (counts := current(memory)) is not None:
        match news.message:
            case do.ReturnToSize(parallel_size=size):
                counts.parallel_size = size
            case do.Submit():
                _note_sent(run, counts, news.message, news.now)
            case ev.RolloutReported() | ev.ResponsesAborted():
                _note_report(run, counts, news.message, news)
            case ev.RunResumed():
                counts.since = dict.fromkeys(counts.since)  # no process was there: such times are not of the engine
        for response in (*news.ended, *news.gone):
            counts.since.pop(response.id, None)


def current(memory: Memory) -> RoundCounts | None:
    """The round that was opened last, unless it is trained already."""
    return memory.rounds.get(memory.round) if memory.round is not None else None


def _note_sent(run: RunFold, counts: RoundCounts, command: do.Submit, now: float) -> None:
    for response, start in command.dispatches:
        if response.group.source == run.train_source:
            counts.num_responses += response not in counts.since
            if start:
                counts.since[response] = None
            else:
                counts.since.setdefault(response, now)


def _note_report(
    run: RunFold, counts: RoundCounts, event: ev.RolloutReported | ev.ResponsesAborted, news: News
) -> None:
    source, is_for_training = run.train_source, False
    for response, new in news.heard:
        if response.id.group.source == source:
            is_for_training = True
            if response.length > counts.longest:
                counts.longest = response.length
            if new:
                _note_tokens(counts, response, new, news.now)
    if news.num_preempted:
        still = run.instance(event.instance).running.values()
        if is_for_training or any(map(run.is_training, still)):
            counts.num_preemptions += news.num_preempted


def _note_tokens(counts: RoundCounts, response: ResponseRecord, new: int, now: float) -> None:
    since, counts.since[response.id] = counts.since.get(response.id), now
    if since is None:
        return
    seconds = now - since
    if response.length == new:
        counts.num_first_tokens += 1
        counts.first_token_s += seconds
        counts.first_token_max_s = max(counts.first_token_max_s, seconds)
    else:
        counts.num_tokens += new
        counts.token_s += seconds


def elapse_round(run: RunFold, memory: Memory, seconds: float) -> None:
    """Count seconds in which instances held what they hold now."""
    if run.generating and not run.is_evaluating and (counts := current(memory)) is not None:
        held = run.num_tokens_held
        counts.held_s += seconds
        counts.held_token_s += seconds * held
        counts.held_max = max(counts.held_max, held)


def round_metrics(counts: RoundCounts) -> dict[str, float]:
    row: dict[str, float] = {
        "round/num_responses": counts.num_responses,
        "round/longest_response": counts.longest,
        "round/kv_tokens/mean": counts.held_token_s / max(counts.held_s, 1e-9),
        "round/kv_tokens/max": counts.held_max,
        "round/num_preemptions": counts.num_preemptions,
        "round/preemptions_per_response": counts.num_preemptions / max(counts.num_responses, 1),
    }
    if counts.parallel_size:
        row["round/parallel_size"] = counts.parallel_size
    if counts.num_first_tokens:
        row["round/time_to_first_token_s/mean"] = counts.first_token_s / counts.num_first_tokens
        row["round/time_to_first_token_s/max"] = counts.first_token_max_s
    if counts.num_tokens:
        row["round/time_per_token_ms/mean"] = 1000.0 * counts.token_s / counts.num_tokens
    return row
