"""Histories of runs whose scores have three parts, and whose limits of test cases are learned."""

from __future__ import annotations

import random
from dataclasses import replace

from core.test_adaptive_timeouts import RULES, Programs
from tailrace.core import events as ev
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.schedule import EvalSet, Leftovers, Schedule

PARTS = (Part.FUNCTION, Part.TESTS, Part.JUDGE)
SCHEDULE = Schedule(
    train_source="train",
    batch_size=2,
    group_size=2,
    max_steps=12,
    launch_prompts=4,
    launch_responses=3,
    leftovers=Leftovers.DEFER,
    num_instances=2,
    score_parts=PARTS,
    case_time=replace(RULES, least_s=0.5),
    eval_sets=(EvalSet(name="heldout", num_prompts=2, group_size=2),),
    eval_interval=4,
)


class ThreeParts(Programs):
    """Scores come from functions, test cases of programs and a judge that counts its tokens."""

    part: Part = Part.FUNCTION

    def say(self, sender: object, event: ev.Event) -> None:
        if isinstance(event, ev.ResponsesScored):
            scores = tuple(self.of_part(scored.response, event.part) for scored in event.scores)
            is_called_off = event.scores[0].outcome is Outcome.ABORTED
            event = event if is_called_off else replace(event, scores=scores)
        super().say(sender, event)  # type: ignore[arg-type]

    def score(self, response: ResponseId) -> ev.Scored:
        return ev.Scored(response=response, outcome=Outcome.OK, score=0.0, seconds=0.0)

    def of_part(self, response: ResponseId, part: Part) -> ev.Scored:
        rng, queued_s = self.rng, self.rng.random()
        if part is Part.TESTS:
            ran = super().score(response)
            verdict = "passed" if ran.is_correct else "time"
            extras = tuple((f"verdict/{name}", float(name == verdict)) for name in ("passed", "time", "wrong"))
            return replace(ran, outcome=Outcome.OK, seconds=1.5, queued_s=queued_s, extras=extras)
        extras = ((f"source/{'math' if response.group.prompt % 2 else 'code'}", 1.0),)
        if part is Part.JUDGE:
            extras = (("judge/num_tokens", float(rng.randint(100, 900))),)
        outcome = Outcome.CRASH if part is Part.JUDGE and rng.random() < 0.03 else Outcome.OK
        return ev.Scored(
            response=response, outcome=outcome, score=rng.random(), seconds=0.5, queued_s=queued_s, extras=extras,
            detail="judge-0 was killed by SIGKILL" if outcome is Outcome.CRASH else "",
        )  # fmt: skip


def three_parts(seed: int = 1) -> ThreeParts:
    world = ThreeParts(SCHEDULE, random.Random(seed), num_prompts=29)
    assert world.run().is_complete
    return world
