from __future__ import annotations

import pytest

from sim.worlds import I0, Stage, response, submit
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import ResponseId, Version
from tailrace.core.outcomes import Outcome
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Placement
from tailrace.sim.faults import InstanceFails, InstanceSlows, MessageLost
from tailrace.sim.reward_model import RewardKind
from tailrace.sim.trainer_model import TrainerCosts

START = do.StartInstance(instance=I0)


def finished(stage: Stage) -> list[tuple[float, int, int, Finish]]:
    """(time, prompt, length, finish) of every response reported as ended."""
    reports = stage.events(ev.RolloutReported)
    return [
        (at, end.response.group.prompt, end.length, end.finish) for at, report in reports for end in report.finished
    ]


def test_responses_end_by_themselves_or_by_their_budget() -> None:
    stage = Stage(3, 200, budget=8).do(START, submit(0, 1)).pass_time()
    assert finished(stage) == [(3.0, 0, 3, Finish.STOP), (8.0, 1, 8, Finish.LENGTH)]


def test_reports_can_be_gathered() -> None:
    stage = Stage(3, 4, 6, report_s=5.0).do(START, submit(0, 1, 2)).pass_time()
    assert [(at, len(report.finished)) for at, report in stage.events(ev.RolloutReported)] == [(5.0, 2), (6.0, 1)]


def test_an_interrupt_returns_the_exact_tokens_and_they_go_on_from_there() -> None:
    stage = Stage(10).do(START, submit(0)).pass_time(3.5)
    stage.do(do.Interrupt(instance=I0, responses=(response(0),))).pass_time(20.0)
    assert finished(stage) == [(4.0, 0, 4, Finish.INTERRUPTED)]
    stage.do(submit(0, start=4)).pass_time()
    assert finished(stage)[1:] == [(26.0, 0, 10, Finish.STOP)]


def test_a_response_that_ends_before_it_can_be_interrupted_is_reported_as_ended() -> None:
    stage = Stage(4).do(START, submit(0)).pass_time(3.5)
    stage.do(do.Interrupt(instance=I0, responses=(response(0),))).pass_time()
    assert finished(stage) == [(4.0, 0, 4, Finish.STOP)]


def test_aborted_responses_report_their_lengths_and_nothing_twice_of_those_that_had_ended() -> None:
    stage = Stage(3, 50, report_s=100.0).do(START, submit(0, 1)).pass_time(5.5)
    stage.do(do.Abort(instance=I0, responses=(response(0), response(1)))).pass_time()
    assert finished(stage) == [(6.0, 0, 3, Finish.STOP)]
    [(at, event)] = stage.events(ev.ResponsesAborted)
    assert at == 6.0
    assert [(part.response.group.prompt, part.length) for part in event.aborted] == [(0, 0), (1, 6)]


def test_a_lost_instance_loses_what_it_generated_since_its_last_report() -> None:
    fault = InstanceFails(at=7.3, instance=I0, down_s=20.0)
    stage = Stage(50, progress_s=5.0, start_s=1.0, faults=[fault]).do(START).pass_time(1.0).do(submit(0)).pass_time(8.0)
    [(_, report)] = stage.events(ev.RolloutReported)
    assert [part.length for part in report.progressed] == [4]  # as of 5.0, having begun at 1.0
    assert stage.heard[-1][1] == ev.InstanceLost(instance=I0, reason="a simulated failure")
    stage.do(START).pass_time()
    assert stage.heard[-1] == (pytest.approx(27.3), ev.InstanceStarted(instance=I0, version=Version(0)))


def test_a_slow_instance_recovers() -> None:
    fault = InstanceSlows(at=2.0, until=10.0, instance=I0, factor=4.0)
    stage = Stage(6, faults=[fault]).do(START, submit(0)).pass_time()
    assert [at for at, *_ in finished(stage)] == [2.0 + 2 * 4.0 + 2.0]


def test_a_lost_message_arrives_when_it_is_repeated_and_later_ones_queue_behind_it() -> None:
    fault = MessageLost(at=1.0, instance=I0, repeat_s=10.0)
    stage = Stage(3, 5, 20, faults=[fault]).do(START, submit(0, 1, 2)).pass_time()
    assert [(at, prompt) for at, prompt, *_ in finished(stage)] == [(13.0, 0), (13.0, 1), (20.0, 2)]


def test_a_long_response_gives_signs_of_life() -> None:
    stage = Stage(400, budget=400).do(START, submit(0)).pass_time()
    reports = [(at, [part.length for part in report.progressed]) for at, report in stage.events(ev.RolloutReported)]
    assert reports == [(150.0, [150]), (300.0, [300]), (400.0, [])]


def test_killing_an_instance_ends_in_its_loss_and_silence() -> None:
    stage = Stage(5).do(START, submit(0), do.KillInstance(instance=I0, reason="a wait")).pass_time()
    assert [type(event) for _, event in stage.heard] == [ev.InstanceLost]


def test_a_killed_trainer_is_lost_and_the_next_repeats_the_steps_after_the_checkpoint() -> None:
    costs = TrainerCosts(fixed_s=4.0, token_s=0.0, start_s=10.0, checkpoint_s=1.0)
    stage = Stage(trainer=costs).do(do.StartTrainer(incarnation=1)).pass_time(10.0)
    stage.do(do.FinishStep(version=Version(0)), do.SaveCheckpoint(version=Version(1)))
    stage.do(do.FinishStep(version=Version(1)), do.FinishStep(version=Version(2))).pass_time(20.0)
    stage.do(do.KillTrainer(reason="a wait")).pass_time(30.0)
    assert stage.heard[-1] == (20.0, ev.TrainerLost(reason="a wait", incarnation=1))
    stage.do(do.StartTrainer(incarnation=2)).pass_time()
    reached = [(at, event.version, event.incarnation) for at, event in stage.events(ev.TrainerReached)]
    assert reached == [(10.0, 0, 1), (40.0, 1, 2), (44.0, 2, 2)]


def test_rewards_wait_for_a_worker_and_can_be_aborted() -> None:
    stage = Stage(rewards=RewardKind(median_s=4.0), workers=1)
    stage.do(do.Score(responses=(response(0), response(1), response(2)))).pass_time(1.0)
    stage.do(do.AbortScores(responses=(response(1),))).pass_time()
    scored = [(at, s.response.group.prompt, s.outcome) for at, e in stage.events(ev.ResponsesScored) for s in e.scores]
    assert scored == [(1.0, 1, Outcome.ABORTED), (4.0, 0, Outcome.OK), (8.0, 2, Outcome.OK)]


def test_a_aborted_reward_frees_its_worker_and_a_scored_one_is_not_answered_again() -> None:
    stage = Stage(rewards=RewardKind(median_s=4.0), workers=1)
    stage.do(do.Score(responses=(response(0), response(1)))).pass_time(5.0)
    stage.do(do.AbortScores(responses=(response(0), response(1))), do.Score(responses=(response(2),))).pass_time()
    scored = [(at, s.response.group.prompt, s.outcome) for at, e in stage.events(ev.ResponsesScored) for s in e.scores]
    assert scored == [(4.0, 0, Outcome.OK), (5.0, 1, Outcome.ABORTED), (9.0, 2, Outcome.OK)]


def test_a_reward_past_its_limit_is_a_timeout() -> None:
    stage = Stage(rewards=RewardKind(median_s=4.0, timeout_s=3.0)).do(do.Score(responses=(response(0),))).pass_time()
    [(at, event)] = stage.events(ev.ResponsesScored)
    assert (at, event.scores[0].outcome) == (3.0, Outcome.TIMEOUT)


def step(version: int, *responses: ResponseId) -> tuple[do.Command, ...]:
    batch = do.Accumulate(version=Version(version), responses=responses, scores=(1.0,) * len(responses))
    return batch, do.FinishStep(version=Version(version))


def test_the_trainer_does_one_thing_after_the_other_and_publishes_beside_it() -> None:
    stage = Stage(6).do(START, submit(0)).pass_time(50.0)
    stage.do(*step(0, response(0)), do.PublishWeights(version=Version(1)), do.SaveCheckpoint(version=Version(1)))
    stage.pass_time()
    assert [(at, type(event)) for at, event in stage.heard[-4:]] == [
        (58.0, ev.GradientsAccumulated),  # 16 tokens on two replicas
        (68.0, ev.StepTrained),  # and 10 s
        (69.0, ev.CheckpointSaved),
        (71.0, ev.WeightsPublished),
    ]


@pytest.mark.parametrize(("overlaps", "publish_s", "ends"), [(True, 3.0, 10.0), (True, 30.0, 30.0), (False, 3.0, 13.0)])
def test_a_version_is_published_before_the_next_step_ends(overlaps: bool, publish_s: float, ends: float) -> None:
    costs = TrainerCosts(fixed_s=10.0, token_s=0.0, publish_s=publish_s, publish_overlaps=overlaps)
    stage = Stage(trainer=costs).do(do.PublishWeights(version=Version(1)), *step(1))
    heard = [(at, type(event)) for at, event in stage.pass_time().heard]
    assert [news for news in heard if news[1] is not ev.GradientsAccumulated] == [
        (publish_s, ev.WeightsPublished),
        (ends, ev.StepTrained),
    ]


def test_memory_is_released_and_weights_are_pulled() -> None:
    stage = Stage(5, release_s=2.0, pull_s=3.0).do(START).pass_time(1.0)
    stage.do(do.ReleaseMemory(instance=I0)).pass_time(10.0)
    stage.do(do.PullWeights(instance=I0, version=Version(1))).pass_time()
    assert stage.heard[1:] == [
        (3.0, ev.MemoryReleased(instance=I0, seconds=2.0)),
        (13.0, ev.WeightsPulled(instance=I0, version=Version(1), seconds=3.0)),
    ]


def test_on_shared_devices_rollout_and_training_slow_each_other_down() -> None:
    apart = Stage(30).do(START, submit(0), *step(0)).pass_time()
    shared = Stage(30, placement=Placement.SHARED).do(START, submit(0), *step(0)).pass_time()
    assert [at for at, *_ in finished(apart)] == [30.0]
    assert [at for at, _ in apart.events(ev.StepTrained)] == [10.0]
    assert [at for at, _ in shared.events(ev.StepTrained)] == [20.0]
    assert [at for at, *_ in finished(shared)] == [40.0]  # 10 tokens in the first 20 s


def test_training_is_slow_only_as_long_as_rollout_goes_on() -> None:
    stage = Stage(4, placement=Placement.SHARED).do(START, submit(0), *step(0)).pass_time()
    assert [at for at, *_ in finished(stage)] == [8.0]
    assert [(at, event.seconds) for at, event in stage.events(ev.StepTrained)] == [(14.0, 14.0)]  # 4 s of work in 8 s


def test_rollout_that_begins_during_a_step_slows_it_from_then_on() -> None:
    stage = Stage(30, placement=Placement.SHARED).do(START, *step(0)).pass_time(5.0)
    stage.do(submit(0)).pass_time()
    assert [at for at, _ in stage.events(ev.StepTrained)] == [15.0]
    assert [at for at, *_ in finished(stage)] == [40.0]  # 5 tokens until 15 s


def test_prompts_go_on_with_the_next_epoch_and_notes_are_not_answered() -> None:
    stage = Stage().do(
        do.RequestPrompts(source="train", epoch=0, offset=3, count=4),
        do.OpenRound(round=0, is_long=False, version=Version(0), num_prompts=4, num_responses=1),
        do.CloseRound(round=0, is_long=False, accepted=()),
    )
    [(_, offered)] = stage.pass_time().heard
    assert offered == ev.PromptsOffered(
        source="train", prompts=((0, 3), (0, 4), (1, 0), (1, 1)), next_epoch=1, next_offset=2
    )


def test_an_unknown_command_is_an_error() -> None:
    with pytest.raises(TypeError, match="unknown command"):
        Stage().do(do.SetTimer(at=1.0))
