"""Active partial rollouts: the properties of their specification (section 2.4), each held to random histories."""

from __future__ import annotations

import random

import numpy as np
import torch
from hypothesis import given
from numpy.typing import NDArray

from core.histories import NUM_PROMPTS, Case, History, active_partial, cases, check_batches, check_conservation, held_to
from core.token_world import BUDGET, TokenWorld, next_logprob, whole
from core.world import Sender, World
from tailrace.algorithms.aggregation import loss_sum
from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Limits, VersionCap
from tailrace.observe.schedules.schedule_account import ScheduleAccount
from tailrace.trainer.batch import Sample
from tailrace.trainer.step.stale import mask_stale


def token_world(case: Case) -> TokenWorld:
    return TokenWorld(case.schedule, random.Random(case.seed), num_prompts=NUM_PROMPTS, trouble=case.trouble)


def written(found: History) -> dict[ResponseId, list[tuple[Version, int]]]:
    """Which version wrote how many tokens of each response, one report after another."""
    runs: dict[ResponseId, list[tuple[Version, int]]] = {}
    for entry in found.world.entries:
        if isinstance(entry.event, ev.RolloutReported):
            for part in (*entry.event.progressed, *entry.event.finished):
                mine = runs.setdefault(part.response, [])
                mine.append((entry.event.version, part.length - sum(count for _, count in mine)))
    return runs


@held_to(70)
@given(cases(active_partial, 0.0, 0.03))
def test_active_partial_property_1_nothing_disappears(case: Case) -> None:
    found = case.run()
    check_conservation(found)
    assert not any(isinstance(c, do.Abort) for c in found.commands), "something that ran was thrown away"


@held_to(30)
@given(cases(active_partial, 0.0, 0.03, filters_equal_scores=True, group_size=2))
def test_active_partial_property_1_also_holds_when_groups_are_filtered(case: Case) -> None:
    check_conservation(case.run())


@held_to(20)
@given(cases(active_partial, 0.0, 0.03))
def test_active_partial_property_2_every_token_has_its_log_prob_mask_and_version(case: Case) -> None:
    with token_world(case) as world:
        world.tell(ev.RunStarted(schedule=case.schedule))
        while world.verdict is None:
            world.advance()
            live = {response.id: response for response in world.coordinator.rooms.responses.all_responses()}
            for name in world.heard & live.keys():
                response = live[name]
                assert len(world.read(name)) == response.length <= BUDGET
                if response.length:
                    held = world.store.response(name)
                    assert len(held.logprobs) == len(held.mask) == len(held) == response.length
                    assert list(held.versions) == response.segments


class RecordingWorld(World):
    """Keeps what the core knew of the tokens of each response when it was trained."""

    def __init__(self, case: Case) -> None:
        super().__init__(case.schedule, random.Random(case.seed), num_prompts=NUM_PROMPTS, checks=False)
        self.recorded: dict[ResponseId, list[tuple[Version, int]]] = {}

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        for step in (command for command in self.entries[-1].commands if isinstance(command, do.Accumulate)):
            for response in step.responses:
                self.recorded[response] = list(self.coordinator.rooms.responses.response(response).segments)


@held_to(70)
@given(cases(active_partial))
def test_active_partial_property_3_versions_never_decrease_along_a_response(case: Case) -> None:
    world = RecordingWorld(case)
    found = History(schedule=case.schedule, world=world, verdict=world.run())
    held: dict[int, Version] = {}
    for entry in found.world.entries:
        match entry.event:
            case (
                ev.InstanceStarted(instance=number, version=version)
                | ev.WeightsPulled(instance=number, version=version)
            ):
                held[number] = version
            case ev.RolloutReported(instance=number, version=version):
                assert version == held[number], "not the version that the instance holds"
    runs = written(found)
    for step in found.steps():
        for response in step.responses:
            versions = [writer for writer, count in runs[response] if count]
            assert versions == sorted(versions)
            assert all(writer <= step.version for writer in versions)
            assert all(count >= 0 for _, count in runs[response])
            assert [writer for writer, _ in world.recorded[response]] == sorted(set(versions))
            for writer, count in world.recorded[response]:
                assert count == sum(new for version, new in runs[response] if version == writer)


@held_to(25)
@given(cases(active_partial, 0.0, 0.03))
def test_active_partial_property_4_a_resumed_response_is_what_it_would_have_been_uninterrupted(case: Case) -> None:
    with token_world(case) as world:
        world.run()
        for response in {t for batch in world.trained for t in batch}:
            text = whole(response)
            logprobs = [next_logprob(response, text[:position]) for position in range(len(text))]
            assert world.read(response) == text
            if text:
                assert np.allclose(world.store.response(response).logprobs, logprobs)


@held_to(20)
@given(cases(active_partial, 0.0, 0.03))
def test_active_partial_property_5_what_was_generated_never_changes(case: Case) -> None:
    with token_world(case) as world:
        world.tell(ev.RunStarted(schedule=case.schedule))
        while world.verdict is None:
            before = dict(world.told)
            world.advance()
            assert all(world.told[t][: len(before.get(t, []))] == before.get(t, []) for t in world.heard)
            for submit in (c for c in world.entries[-1].commands if isinstance(c, do.Submit)):
                for dispatch in submit.dispatches:
                    assert dispatch.start == len(world.told.get(dispatch.response, []))


@held_to(70)
@given(cases(active_partial))
def test_active_partial_property_6_what_was_begun_goes_on_before_anything_new(case: Case) -> None:
    schedule, begun, waiting = case.schedule, set[GroupId](), set[ResponseId]()
    for entry in case.run().world.entries:
        if isinstance(entry.event, ev.RolloutReported):
            waiting |= {p.response for p in entry.event.finished if p.finish is Finish.INTERRUPTED}
        for command in entry.commands:
            if isinstance(command, do.OpenRound):
                assert len(command.resumed) <= schedule.num_launched - schedule.batch_size
        # All that is given out in answer to one event counts as given at once, whichever instance gets it.
        submits = [command for command in entry.commands if isinstance(command, do.Submit)]
        given = {d.response for submit in submits for d in submit.dispatches}
        given = {response for response in given if response.group.source == "train"}
        is_new = any(response.group not in begun for response in given)
        begun |= {response.group for response in given}
        waiting -= given
        assert not (is_new and waiting), "something new began while something begun waited"


@held_to(70)
@given(cases(active_partial, 0.0, 0.03))
def test_active_partial_property_7_a_step_has_exactly_its_groups_in_order(case: Case) -> None:
    check_batches(case.run())


@held_to(20)
@given(cases(active_partial, group_size=2))
def test_active_partial_property_8_under_a_prefix_mask_only_the_newest_tokens_of_a_group_train(case: Case) -> None:
    settings = AlgorithmSettings(stale_tokens="mask-prefix")
    with token_world(case) as world:
        world.run()
        for version, batch in enumerate(world.trained):
            responses = [world.store.response(response_id) for response_id in batch if world.read(response_id)]
            for name in {response.response_id.group for response in responses}:
                mine = [response for response in responses if response.response_id.group == name]
                prompt = np.ones(1, np.int32)
                group = [Sample(response_id=r.response_id, prompt=prompt, response=r, score=0.0) for r in mine]
                (masked,) = mask_stale([group], Version(version), settings)
                newest = max(writer for response in mine for writer, _ in response.versions)
                for response, sample in zip(mine, masked, strict=True):
                    fresh = sum(count for writer, count in response.versions if writer == newest)
                    assert sample.response.mask.sum() == fresh
                check_masked_tokens_do_not_count([sample.response.mask for sample in masked])


def check_masked_tokens_do_not_count(masks: list[NDArray[np.uint8]]) -> None:
    mask_BT = torch.zeros(len(masks), BUDGET, dtype=torch.bool)
    for row, mask in enumerate(masks):
        mask_BT[row, : len(mask)] = torch.from_numpy(mask).bool()
    loss_BT = torch.rand(mask_BT.shape, requires_grad=True)
    loss = loss_sum(loss_BT, mask_BT, "token-mean")
    loss.backward()
    assert loss_sum(torch.where(mask_BT, loss_BT, torch.nan), mask_BT, "token-mean") == loss
    assert loss_BT.grad is not None
    assert bool(((loss_BT.grad != 0) == mask_BT).all())


class ForgetfulWorld(World):
    """What was given up is confirmed twice."""

    def say(self, sender: Sender, event: ev.Event) -> None:
        super().say(sender, event)
        if isinstance(event, ev.ResponsesAborted) and self.verdict is None:
            before = self.coordinator.live(), self.coordinator.waits(), self.coordinator.version
            super().say(sender, event)
            assert self.entries[-1].commands == ()
            assert (self.coordinator.live(), self.coordinator.waits(), self.coordinator.version) == before


@held_to(40)
@given(cases(active_partial, max_versions_per_sample=1, version_cap=VersionCap.RESTART))
def test_active_partial_property_9_a_second_abort_changes_nothing(case: Case) -> None:
    world = ForgetfulWorld(case.schedule, random.Random(case.seed), num_prompts=NUM_PROMPTS, checks=False)
    assert world.run().is_complete


class HungWorld(World):
    """The judge never answers for the responses of one prompt."""

    def answer(self, command: do.Command) -> None:
        super().answer(command)
        self.rewards = {key: None for key in self.rewards if key[1].group[::2] != ("train", 0)}


@held_to(60)
@given(cases(active_partial, limits=Limits(reward_s=1e9)))
def test_active_partial_property_9_a_judge_that_hangs_holds_up_no_step(case: Case) -> None:
    world = HungWorld(case.schedule, random.Random(case.seed), num_prompts=NUM_PROMPTS, checks=False)
    verdict = world.run(max_events=5000)
    assert verdict.is_complete, verdict.reason
    check_batches(History(schedule=case.schedule, world=world, verdict=verdict))
    assert not any(t.group.prompt == 0 for batch in world.trained for t in batch)


@held_to(60)
@given(cases(active_partial))
def test_active_partial_property_10_the_carried_share_is_that_of_the_trained_tokens(case: Case) -> None:
    found, account = case.run(), ScheduleAccount()
    for entry in found.world.entries:
        account.feed(entry)
    runs, carried, trained = written(found), 0, 0
    for step in found.steps():
        tokens = [run for response in step.responses for run in runs[response]]
        trained += sum(count for _, count in tokens)
        carried += sum(count for version, count in tokens if version < step.version)
    assert account.figures().carried_share == carried / max(trained, 1)


@held_to(30)
@given(cases(active_partial, max_versions_per_sample=2))
def test_the_cap_on_versions_of_a_response_is_kept(case: Case) -> None:
    for runs in written(case.run()).values():
        assert len({version for version, count in runs if count}) <= 2


def test_responses_are_continued_and_tokens_are_carried() -> None:
    """Else most of these tests show nothing."""
    account = ScheduleAccount()
    case = Case(schedule=active_partial(random.Random(2), batch_size=3, launch_prompts=6, max_steps=7), seed=0)
    for entry in case.run().world.entries:
        account.feed(entry)
    assert account.figures().versions_max > 1
    assert account.figures().carried_share > 0.05
