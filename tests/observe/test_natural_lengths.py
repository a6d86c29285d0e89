"""Responses that were stopped early are visible: in metrics, in the report and as an alarm."""

from __future__ import annotations

import math
from functools import cache
from statistics import fmean
from typing import Any

import pytest

from observe.speculation import NATURAL_MEAN, speculative_run
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.journal import Entry
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Leftovers, Schedule
from tailrace.dashboard import tables
from tailrace.observe.account import Account
from tailrace.observe.prompts import fairness

INSTANCE = InstanceId(0)


@cache
def simulated(leftovers: Leftovers, num_launched: int) -> Account:
    return Account.of(speculative_run(leftovers, num_launched))


def test_launching_six_for_four_shows_how_long_the_stopped_responses_would_have_been() -> None:
    account = simulated(Leftovers.DROP, 6)
    row = account.steps[-1]
    ended = [length for step in account.fates.lengths[-10:] for length in step.generated]
    trained = [length for step in account.fates.lengths[-10:] for length in step.trained]
    assert fmean(ended) == pytest.approx(fmean(trained), rel=0.1), "what ended tells nothing about what was stopped"
    assert fmean(trained) < 0.5 * NATURAL_MEAN
    assert row["response_length/natural_mean"] > 1.5 * fmean(trained)
    assert row["response_length/natural_unseen_ratio"] > 0.1, "the mean is a lower bound and says so"
    assert row["response_length/natural_p50"] == pytest.approx(NATURAL_MEAN * math.log(2), rel=0.15)
    assert row["response_length/num_censored"] > 0
    assert 0.3 < row["response_length/censored_ratio"] < 0.6


def test_launching_six_for_four_is_an_alarm_in_the_report() -> None:
    account = simulated(Leftovers.DROP, 6)
    (alarm,) = fairness.length_alarms(account.fates)
    assert alarm.startswith("long responses are missing from training")
    assert "the natural mean is at least" in alarm
    assert alarm in tables.lengths_note(account)
    trained, natural = tables.length_rows(account)
    assert trained["words"] == "trained on"
    assert natural["cells"][2].startswith("\N{GREATER-THAN OR EQUAL TO} ")


def test_without_speculation_natural_lengths_are_the_trained_ones() -> None:
    account = simulated(Leftovers.WAIT, 4)
    trained = [length for step in account.fates.lengths[-10:] for length in step.trained]
    row = account.steps[-1]
    assert row["response_length/natural_mean"] == pytest.approx(fmean(trained))
    assert row["response_length/num_censored"] == row["response_length/natural_unseen_ratio"] == 0
    assert fairness.length_alarms(account.fates) == []


def test_long_rounds_show_the_tail_that_short_rounds_stop() -> None:
    row = simulated(Leftovers.DEFER, 6).steps[-1]
    assert row["response_length/natural_mean"] == pytest.approx(NATURAL_MEAN, rel=0.2)
    assert row["response_length/natural_unseen_ratio"] == pytest.approx(0.0)


def response(prompt: int, member: int = 0, attempt: int = 0) -> ResponseId:
    return ResponseId(GroupId("train", 0, prompt), member, attempt)


def submit(*dispatches: tuple[ResponseId, int]) -> do.Submit:
    return do.Submit(instance=INSTANCE, dispatches=tuple(do.Dispatch(*dispatch) for dispatch in dispatches))


def ended(response: ResponseId, length: int, finish: Finish = Finish.STOP) -> ev.RolloutReported:
    part = ev.Finished(response=response, length=length, finish=finish)
    return ev.RolloutReported(instance=INSTANCE, version=Version(0), finished=(part,))


def stopped(response: ResponseId, length: int) -> ev.ResponsesAborted:
    return ev.ResponsesAborted(instance=INSTANCE, aborted=(ev.Aborted(response=response, length=length),))


def sampled(
    *messages: tuple[ev.Event, tuple[do.Command, ...]], **changes: Any
) -> tuple[dict[int, int], dict[int, int]]:
    """Lengths that ended and that were stopped in one step, which trains response 0 with 5 tokens."""
    schedule = Schedule(train_source="train", batch_size=1, group_size=1, max_steps=1, launch_prompts=2, **changes)
    offered = ev.PromptsOffered(source="train", prompts=((0, 0), (0, 1)), next_epoch=0, next_offset=2)
    train = do.Accumulate(version=Version(0), responses=(response(0),), scores=(1.0,))
    account = Account()
    for event, commands in (
        (ev.RunStarted(schedule=schedule), ()),
        (offered, (submit((response(0), 0), (response(1), 0)),)),
        *messages,
        (ended(response(0), 5), (train,)),
        (ev.StepTrained(version=Version(1), seconds=1.0, metrics=()), ()),
    ):
        account.feed(Entry(now=1.0, event=event, commands=commands))
    (step,) = account.fates.lengths
    return step.observed.ended, step.observed.censored


FIRED = ev.TimerFired()
ABORT = do.Abort(instance=INSTANCE, responses=(response(1),))


def test_an_aborted_response_is_a_lower_bound_with_the_tokens_it_had_when_its_instance_stopped_it() -> None:
    assert sampled((FIRED, (ABORT,)), (stopped(response(1), 9), ()), leftovers=Leftovers.DROP) == ({5: 1}, {9: 1})


def test_a_response_that_ended_before_it_could_be_stopped_has_its_full_length() -> None:
    messages = ((FIRED, (ABORT,)), (ended(response(1), 8), ()), (stopped(response(1), 0), ()))
    assert sampled(*messages, leftovers=Leftovers.DROP) == ({5: 1, 8: 1}, {})


def test_an_interrupted_response_that_goes_on_counts_once_by_its_final_length() -> None:
    messages = (
        (ended(response(1), 4, Finish.INTERRUPTED), (submit((response(1), 4)),)),
        (ended(response(1), 11), (do.ReportDropped(filtered=(response(1).group,)),)),
    )
    assert sampled(*messages, leftovers=Leftovers.DROP) == ({5: 1, 11: 1}, {})


def test_an_interrupted_response_that_still_waits_is_not_counted_yet() -> None:
    waiting = (ended(response(1), 4, Finish.INTERRUPTED), ())
    assert sampled(waiting, leftovers=Leftovers.DROP) == ({5: 1}, {})


def test_a_response_that_starts_again_is_a_lower_bound_and_its_next_attempt_another_observation() -> None:
    messages = (
        (ended(response(1), 4, Finish.INTERRUPTED), (submit((response(1, attempt=1), 0)),)),
        (ended(response(1, attempt=1), 7), (do.ReportDropped(filtered=(response(1).group,)),)),
    )
    assert sampled(*messages, leftovers=Leftovers.DROP) == ({5: 1, 7: 1}, {4: 1})


def test_a_deferred_group_that_loses_its_tokens_gives_lower_bounds() -> None:
    close = do.CloseRound(round=0, is_long=False, accepted=(), deferred=(response(1).group,))
    messages = ((FIRED, (close, ABORT)), (stopped(response(1), 6), ()))
    assert sampled(*messages, leftovers=Leftovers.DEFER) == ({5: 1}, {6: 1})


def test_a_dropped_response_whose_instance_is_lost_keeps_the_tokens_that_were_reported() -> None:
    part = ev.Progressed(response=response(1), length=3)
    messages = (
        (ev.RolloutReported(instance=INSTANCE, version=Version(0), progressed=(part,)), (ABORT,)),
        (ev.InstanceLost(instance=INSTANCE, reason="killed"), (submit((response(0), 0)),)),
    )
    assert sampled(*messages, leftovers=Leftovers.DROP) == ({5: 1}, {3: 1})
