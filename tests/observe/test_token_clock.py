"""What the reports of an instance say about the steps of its engine."""

from __future__ import annotations

from tailrace.core.commands import Dispatch
from tailrace.core.events import Finished, Progressed, RolloutReported
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.responses.response import Finish
from tailrace.observe.costs.token_clock import EngineSample, TokenClock


def named(prompt: int, member: int = 0) -> ResponseId:
    return ResponseId(group=GroupId(source="train", epoch=0, prompt=prompt), member=member, attempt=0)


def report(
    finished: dict[ResponseId, int], progressed: dict[ResponseId, int] | None = None, finish: Finish = Finish.STOP
) -> RolloutReported:
    return RolloutReported(
        instance=InstanceId(0),
        version=Version(0),
        finished=tuple(Finished(response=r, length=n, finish=finish) for r, n in finished.items()),
        progressed=tuple(Progressed(response=r, length=n) for r, n in (progressed or {}).items()),
    )


def clock(
    samples: list[EngineSample],
    *starts: tuple[ResponseId, int],
    max_running: int = 2,
    prefill_chunk: int | None = None,
    length_classes: tuple[int, ...] = (),
) -> TokenClock:
    found = TokenClock(
        prompt_length=10,
        max_running=max_running,
        hand_over=samples.append,
        prefill_chunk=prefill_chunk,
        length_classes=length_classes,
    )
    found.submit([Dispatch(response=r, start=start) for r, start in starts], 0.0)
    return found


def test_who_waits_runs_from_the_step_at_which_a_place_was_free() -> None:
    """Not from the report on: else every turn of the places would count some steps too many."""
    samples: list[EngineSample] = []
    found = clock(samples, *((named(i), 0) for i in range(4)))
    found.report(report({named(0): 30, named(2): 20}, {named(1): 60, named(3): 10}), 0.3)
    assert samples == [], "too few steps"
    found.report(report({named(1): 100, named(3): 40}), 0.5)
    [sample] = samples
    assert (sample.steps, sample.seconds, sample.prefilled) == (100, 0.5, 40)
    assert [(steps, n) for steps, _, n in sample.parts] == [(30, 2), (20, 2), (10, 2), (30, 2), (10, 1)]


def test_a_sample_ends_where_the_clock_is_known_to_the_step() -> None:
    samples: list[EngineSample] = []
    found = clock(samples, (named(0), 0), (named(1), 0))
    found.report(report({named(0): 70}), 0.35)
    assert samples == [], "how long ago it ended is not told"
    found.report(report({}, {named(1): 80}), 0.4)
    assert [(sample.steps, sample.seconds) for sample in samples] == [(80, 0.4)]
    found.report(report({named(1): 90}), 0.5)
    assert [sample.steps for sample in samples] == [80, 10], "it was the last one"
    assert [sample.is_first for sample in samples] == [True, False]


def test_a_prompt_counts_once_for_members_that_run_together() -> None:
    samples: list[EngineSample] = []
    found = clock(samples, (named(0, 0), 0), (named(0, 1), 5), (named(1), 0), (named(0, 2), 7))
    found.report(report({named(0, 0): 20, named(0, 1): 25, named(1): 9, named(0, 2): 17}), 0.5)
    [sample] = samples
    assert (sample.prompts, sample.resumed, sample.prefilled) == (3, 12, 52)


def test_resumed_responses_are_padded_to_the_longest_of_their_chunk() -> None:
    samples: list[EngineSample] = []
    found = clock(samples, *((named(i), n) for i, n in enumerate((8, 5, 0, 3, 30))), max_running=5, prefill_chunk=20)
    found.report(report({named(i): 31 for i in range(5)}), 0.5)
    [sample] = samples
    assert (sample.resumed, sample.resumed_batches) == (2 * 8 + 3 + 30, 3)


def test_with_length_classes_what_attention_covers_counts_as_held() -> None:
    samples: list[EngineSample] = []
    found = clock(samples, (named(0), 0), (named(1), 20), (named(2), 200), max_running=3, length_classes=(64, 256))
    found.report(report({named(i): length + 10 for i, length in enumerate((0, 20, 200))}), 0.5)
    [sample] = samples
    assert sample.parts == [(10, 2 * (10 + 20 + 5) + (10 + 200 + 5), 3)], "in the middle of the ten steps"
    assert sample.class_steps == 2 * 10


def test_one_that_was_stopped_before_it_ran_took_no_steps() -> None:
    samples: list[EngineSample] = []
    found = clock(samples, (named(0), 0), (named(1), 40), max_running=1)
    found.report(report({named(0): 8, named(1): 40}, finish=Finish.INTERRUPTED), 0.5)
    [sample] = samples
    assert (sample.steps, sample.prefilled) == (8, 10)
    assert not found.is_busy


def test_a_report_older_than_the_last_one_does_not_turn_the_clock_back() -> None:
    samples: list[EngineSample] = []
    found = clock(samples, (named(0), 0), (named(1), 0))
    found.report(report({}, {named(0): 50, named(1): 50}), 0.25)
    found.report(report({}, {named(0): 20, named(1): 20}), 0.30)
    found.report(report({}, {named(0): 80, named(1): 80}), 0.40)
    assert [sample.steps for sample in samples] == [80]
