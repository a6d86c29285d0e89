"""The order of the rules carries no meaning: what must happen in a certain order is one rule."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from core.histories import NUM_PROMPTS, Case, History, cases, coordinated, held_to, one_schedule
from core.test_any_schedule import check_end
from core.world import World
from tailrace.core.collection.rules import collect, open_round
from tailrace.core.ids import ResponseId
from tailrace.core.rules import RULES, Rule
from tailrace.core.schedule import EvalSet, Leftovers, Placement, Schedule

orders = st.permutations(RULES)


def run(case: Case, rules: list[Rule]) -> None:
    rng = random.Random(case.seed)
    world = World(case.schedule, rng, num_prompts=NUM_PROMPTS, trouble=case.trouble, rules=rules)
    check_end(History(schedule=case.schedule, world=world, verdict=world.run()))


@held_to(60)
@given(cases(one_schedule, 0.0, 0.05), orders)
def test_any_sound_schedule_reaches_its_end_in_whatever_order_the_rules_are_applied(
    case: Case, rules: list[Rule]
) -> None:
    """``World`` checks every invariant after every event."""
    run(case, rules)


@held_to(20)
@given(cases(coordinated, 0.0, 0.05), orders)
def test_work_that_moves_between_instances_does_not_depend_on_the_order_of_the_rules(
    case: Case, rules: list[Rule]
) -> None:
    run(case, rules)


def test_a_round_that_is_complete_when_it_opens_leaves_the_device_to_the_evaluation() -> None:
    """Colocated: the step waits for an evaluation, so instances that have released their memory must take it again."""
    others = [rule for rule in RULES if rule is not open_round]
    rules = [*others[: others.index(collect)], open_round, *others[others.index(collect) :]]
    for seed in range(60):
        rng = random.Random(seed)
        schedule = Schedule(
            train_source="train",
            batch_size=(batch_size := rng.randint(1, 3)),
            group_size=1,
            max_steps=8,
            launch_prompts=2 * batch_size,
            leftovers=Leftovers.DEFER,
            max_staleness=rng.choice([1, 3]),
            placement=Placement.COLOCATED,
            keep_deferred_tokens=True,
            num_instances=2,
            max_in_flight=16,
            eval_sets=(EvalSet(name="heldout", num_prompts=2, group_size=1),),
            eval_interval=rng.choice([1, 2]),
            epoch_size=NUM_PROMPTS,
        )
        assert World(schedule, rng, num_prompts=NUM_PROMPTS, rules=rules).run().is_complete


def trained(seed: int, rules: tuple[Rule, ...]) -> list[tuple[ResponseId, ...]]:
    schedule = Schedule(train_source="train", batch_size=3, group_size=2, max_steps=5, num_instances=2)
    world = World(schedule, random.Random(seed), num_prompts=NUM_PROMPTS, rules=rules)
    assert world.run().is_complete
    return world.trained


def test_sync_trains_the_same_batches_in_whatever_order_the_rules_are_applied() -> None:
    usual = trained(0, RULES)
    for seed in range(20):
        rules = tuple(random.Random(seed).sample(RULES, len(RULES)))
        assert trained(seed, rules) == usual
