"""Advice: what is tried, what is predicted, and what is said about it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim.worlds import small_scenario
from tailrace.config.load import load
from tailrace.config.presets import PRESETS, ROLLOUT_ONLY
from tailrace.core.commands import StartInstance
from tailrace.core.events import RunStarted
from tailrace.core.journal import Entry
from tailrace.core.schedule import Division, Layout, Parallelism, Placement, Schedule, Stream
from tailrace.engines.registry import refused as refused_by_engine
from tailrace.observe.schedules import advice as advice_file
from tailrace.observe.schedules.advice import Advice, PredictedSchedule, SpeedVerdict
from tailrace.observe.schedules.comparison import figures_of
from tailrace.sim.advice.advisor import LEAST_MARGIN, make_advice
from tailrace.sim.advice.candidates import KNOBS, Candidate, Excluded, candidates, own_candidate
from tailrace.sim.advice.evidence import LEAST_STEPS, Evidence, first_steps, num_trained
from tailrace.sim.advice.prediction import PredictedSpeed, predict
from tailrace.sim.advice.verdict import sentences, verdict_of
from tailrace.sim.one_size import LEFT_OUT
from tailrace.sim.result import simulate

CONFIG: dict[str, Any] = {
    "rollout": {
        "engine": "native",
        "num_instances": 2,
        "max_response_length": 500,
        "kv_tokens": 5000,
        "max_running": 8,
        "prefill_chunk": 512,
    },
    "data": {"max_prompt_length": 20},
    "reward": {"workers": 3},
    "schedule": {"preset": "sync"},
}
SCENARIO = small_scenario(schedule__num_steps=8, engine__max_running=8, engine__placement="shared")


def recorded(name: str) -> list[Entry]:
    entries: list[Entry] = []
    simulate(SCENARIO, name, record=entries.append)
    first = entries[0].event
    assert isinstance(first, RunStarted)
    schedule = replace(first.schedule, epoch_size=1000)  # the simulator draws prompts without end
    return [replace(entries[0], event=RunStarted(schedule=schedule)), *entries[1:]]


@pytest.fixture(scope="module")
def journal() -> list[Entry]:
    return recorded("sync")


@pytest.fixture(scope="module")
def evidence(journal: list[Entry]) -> Evidence:
    return Evidence.of(journal, CONFIG)


def plain(**changes: Any) -> Schedule:
    return replace(Schedule(train_source="train", batch_size=8, group_size=4, max_steps=5, epoch_size=1000), **changes)


def tried(schedule: Schedule, config: Mapping[str, Any] = CONFIG) -> dict[str, Candidate]:
    return {each.name: each for each in candidates(schedule, config, refused_by_engine) if isinstance(each, Candidate)}


def refused(schedule: Schedule, config: Mapping[str, Any] = CONFIG) -> dict[str, str]:
    return {
        each.name: each.reason for each in candidates(schedule, config, refused_by_engine) if isinstance(each, Excluded)
    }


def test_every_preset_that_trains_is_tried_or_comes_with_a_reason() -> None:
    for schedule in (plain(), plain(placement=Placement.COLOCATED), plain(is_reward_streamed=False)):
        found = {each.preset for each in tried(schedule).values()} | {name.split(",")[0] for name in refused(schedule)}
        same = {"sync"}  # the schedule of the run itself
        if schedule.placement is Placement.COLOCATED:
            same.add("rollpacker")  # with one replica nothing is lent or streamed, so it is tail batching
        assert found | same == set(PRESETS) - {ROLLOUT_ONLY}


def test_rollpacker_is_tried_without_what_the_run_cannot_do() -> None:
    found = tried(plain())["rollpacker"].schedule
    assert (found.stream, found.lending.strategy, found.parallelism.strategy) == (Stream.ALWAYS, "never", "fixed")
    replicas = CONFIG | {"trainer": {"num_ranks": 2, "num_replicas": 2}}
    assert tried(plain(num_instances=2), replicas)["rollpacker"].schedule.lending.strategy == "kv-peak"
    fixed = CONFIG | {"rollout": CONFIG["rollout"] | {"deterministic": True}}
    assert "rollpacker" not in tried(plain(), fixed), "without streamed steps it is tail batching"
    assert "rollpacker" not in refused(plain(), fixed)


def test_knobs_are_settings_of_presets_that_exist() -> None:
    assert set(KNOBS) <= set(PRESETS)
    for preset, values in KNOBS.items():
        for knobs in values:
            settings = {"schedule.preset": preset, **{f"schedule.{name}": json.dumps(v) for name, v in knobs.items()}}
            assert load("quickstart", settings).schedule.preset == preset


def test_what_cannot_run_in_the_placement_comes_with_the_reason() -> None:
    reasons = refused(plain(placement=Placement.COLOCATED))
    assert {"one-step", "async-cap", "staleflow", "stage-overlap"} <= set(reasons)
    assert "colocated rollout and training take turns" in reasons["one-step"]
    assert "tail-batching" in tried(plain(placement=Placement.COLOCATED))


def test_what_another_setting_forbids_comes_with_the_reason() -> None:
    config = {**CONFIG, "rollout": {**CONFIG["rollout"], "deterministic": True}}
    assert "deterministic" in refused(plain(), config)["stage-overlap"]
    assert "stage-overlap" not in tried(plain(), config)


def test_places_that_the_settings_rule_out_are_not_lent() -> None:
    """One instance cannot be divided, and vLLM keeps its memory on a CPU."""
    replicas = CONFIG | {"trainer": {"num_ranks": 2, "num_replicas": 2}}
    vllm = replicas | {"rollout": CONFIG["rollout"] | {"engine": "vllm"}, "model": {"device": "cpu"}}
    for schedule, config, why in (
        (plain(num_instances=2), CONFIG, "the trainer has one replica"),
        (plain(num_instances=2), vllm, "vLLM does not release its memory on a CPU"),
    ):
        found = tried(schedule, config)["rollpacker"]
        assert next(part.why for part in found.left_out if part.name == "lending").startswith(why)
        assert found.schedule.lending.strategy == "never"


def test_what_the_engine_cannot_do_is_not_tried() -> None:
    """vLLM does not release its memory on a CPU, so instances of another parallel size cannot wait there."""
    rollout = CONFIG["rollout"] | {"engine": "vllm", "parallel_sizes": [1, 2], "park": "always"}
    config = CONFIG | {"rollout": rollout, "model": {"device": "cpu"}}
    assert refused(plain(num_instances=2), config)["rollpacker"].startswith("rollout.park is 'always', but the vllm")
    assert "stage-overlap" in tried(plain(num_instances=2), config)


def test_the_settings_line_undoes_what_the_recipe_says_of_its_own_schedule() -> None:
    own = {"preset": "tail-batching", "over_provision_prompts": 1.5, "over_provision_trials": [1.1, 1.3]}
    found = tried(plain(), {**CONFIG, "schedule": own})
    line = found["staleflow, max_staleness 2"].settings
    words = line.split()
    given = dict(zip([word.removeprefix("--") for word in words[::2]], words[1::2], strict=True))
    assert given == {
        "schedule.preset": "staleflow",
        "schedule.max_staleness": "2",
        "schedule.over_provision_prompts": "null",
        "schedule.over_provision_trials": "[]",
    }
    assert load("quickstart", given).schedule.over_provision_prompts is None


def test_the_schedule_of_the_run_is_not_tried_again() -> None:
    for name in ("sync", "staleflow"):
        schedule = recorded_schedule(name)
        assert name not in tried(schedule, {**CONFIG, "schedule": {"preset": name}})
    assert own_candidate(plain(), CONFIG).settings == "--schedule.preset sync"


def recorded_schedule(name: str) -> Schedule:
    first = recorded(name)[0].event
    assert isinstance(first, RunStarted)
    return first.schedule


def test_a_schedule_that_was_not_recorded_is_predicted(evidence: Evidence) -> None:
    real = figures_of(recorded("active-partial"))
    found = predict(evidence, tried(evidence.schedule)["active-partial"].schedule)
    assert found.step_s == pytest.approx(real.seconds_per_step, rel=0.1)
    assert found.tokens == pytest.approx(real.tokens_trained / real.num_steps, rel=0.1)


def test_draws_of_lengths_that_were_not_seen_make_a_range(evidence: Evidence) -> None:
    found = predict(evidence, tried(evidence.schedule)["tail-batching"].schedule)
    assert found.least_s < found.step_s < found.most_s
    assert found.drawn_share > 0.1


def test_what_the_run_does_not_tell_about_overlap_is_in_the_range(journal: list[Entry], evidence: Evidence) -> None:
    schedule = tried(evidence.schedule)["one-step"].schedule
    unknown = predict(evidence, schedule)
    known = Evidence.of(journal, CONFIG, others=[recorded("one-step")])
    assert (evidence.calibration.saw_overlap, known.calibration.saw_overlap) == (False, True)
    measured = predict(known, schedule)
    assert unknown.most_s - unknown.least_s > 3 * (measured.most_s - measured.least_s)
    assert unknown.least_s <= measured.step_s <= unknown.most_s * 1.01


def test_costs_that_follow_from_an_assumed_slowdown_make_every_range_wider_and_it_is_said() -> None:
    """In a run of `one-step` whose training is short, it always runs beside rollout."""
    evidence = Evidence.of(recorded("one-step"), CONFIG)
    assert evidence.calibration.corrected == ("training",)
    found = predict(evidence, tried(evidence.schedule)["sync"].schedule)
    drawn = predict(replace(evidence, extremes=()), tried(evidence.schedule)["sync"].schedule)
    assert found.most_s - found.least_s > 3 * (drawn.most_s - drawn.least_s)
    said = " ".join(make_advice(evidence, lambda line: None).sentences)
    assert "Training (almost) never had the devices alone in this run, so the slowdown by the other is assumed" in said
    assert "A few steps of sync and of one-step on the same machine, given as --with RUN, measure it." in said


def test_a_long_run_is_looked_at_up_to_a_step(journal: list[Entry]) -> None:
    assert (num_trained(journal), num_trained(first_steps(journal, 5))) == (8, 5)
    found = Evidence.of(journal, CONFIG, num_steps=5)
    assert (found.num_steps, found.num_recorded, found.recorded.num_steps) == (5, 8, 5)


def with_sizes(entries: list[Entry], *started: int, strategy: str = "fixed") -> list[Entry]:
    """The run with parallel sizes 1 and 2 to choose from, and its two instances started with these sizes in turn."""
    layouts = (Layout(division=Division(1), first=0, count=2), Layout(division=Division(2), first=2, count=1))
    first = entries[0].event
    assert isinstance(first, RunStarted)
    schedule = replace(first.schedule, parallelism=Parallelism(strategy=strategy, layouts=layouts))
    sizes = itertools.cycle(started)
    commands = [
        replace(each, size=next(sizes)) if isinstance(each, StartInstance) else each for each in entries[0].commands
    ]
    return [replace(entries[0], event=RunStarted(schedule=schedule), commands=tuple(commands)), *entries[1:]]


@pytest.mark.parametrize(("started", "strategy"), [((1, 2), "fixed"), ((1,), "preemptions"), ((1, 2), "forecast")])
def test_a_run_of_several_parallel_sizes_is_refused(
    journal: list[Entry], started: tuple[int, ...], strategy: str
) -> None:
    changed = with_sizes(journal, *started, strategy=strategy)
    told = r"changes the parallel size of its instances \(\[1, 2\]\); costs of several parallel sizes cannot be told"
    with pytest.raises(ValueError, match=told):
        Evidence.of(changed, CONFIG)
    with pytest.raises(ValueError, match=told):
        Evidence.of(journal, CONFIG, others=[changed])


def test_parallel_sizes_that_the_run_never_used_are_left_out_and_it_is_said(journal: list[Entry]) -> None:
    found = Evidence.of(with_sizes(journal, 1), CONFIG, num_steps=4)
    plain = Evidence.of(journal, CONFIG, num_steps=4)
    assert found.schedule == plain.schedule
    assert all(each.schedule.parallelism.strategy == "fixed" for each in tried(found.schedule).values())
    unsized, sized = make_advice(plain, lambda line: None), make_advice(found, lambda line: None)
    assert sized.rows == unsized.rows
    assert set(sized.sentences) - set(unsized.sentences) == {LEFT_OUT}
    why = "rollpacker: without changes of the parallel size, because the journal has one parallel size."
    assert why in unsized.sentences


def test_the_correction_of_the_calibration_is_told_apart_from_the_difference(evidence: Evidence) -> None:
    stretched = replace(evidence, calibration=replace(evidence.calibration, stretch=1.076))
    advice = make_advice(stretched, lambda line: None)
    difference = advice.own.step_s / advice.recorded_s - 1
    said = advice_file.basis(advice)
    assert f"s predicted ({difference:+.1%}). Calibration had to correct the fitted costs by +7.6%." in said
    assert said.endswith("A difference below 7.6% counts as none.")


def test_a_run_that_is_predicted_badly_is_compared_with_nothing(evidence: Evidence) -> None:
    stretched = replace(evidence, calibration=replace(evidence.calibration, stretch=1.25))
    advice = make_advice(stretched, lambda line: None)
    assert {row.verdict for row in advice.rows[1:]} == {SpeedVerdict.CANNOT_TELL}
    assert advice.sentences[0].startswith("The error of the prediction of the run itself is 25%, more than 20%")
    assert not any(each.startswith(("Keep", "Use")) for each in advice.sentences)


def test_a_streamed_run_alone_says_what_it_does_not_tell(evidence: Evidence) -> None:
    def said(given: Evidence) -> bool:
        return any("at the ends of rounds" in each for each in make_advice(given, lambda line: None).sentences)

    streamed = replace(evidence, schedule=replace(evidence.schedule, stream=Stream.ALWAYS))
    assert not said(evidence)
    assert said(streamed)
    assert not said(replace(streamed, num_runs=2))


def test_the_printed_range_includes_the_error_of_the_run_itself(evidence: Evidence) -> None:
    stretched = replace(evidence, calibration=replace(evidence.calibration, stretch=1.1))
    advice = make_advice(stretched, lambda line: None)
    shown = {cells[0]: cells[2] for cells in advice_file.cells(advice)}
    for row in advice.rows:
        least, most = map(float, shown[row.name].split(" to "))
        assert (least, most) == (pytest.approx(0.9 * row.least_s, rel=0.01), pytest.approx(1.1 * row.most_s, rel=0.01))


def test_too_few_steps_are_refused(journal: list[Entry]) -> None:
    with pytest.raises(
        ValueError, match=f"2 optimizer steps are too few to predict from; it takes at least {LEAST_STEPS}"
    ):
        Evidence.of(first_steps(journal, 2), CONFIG)


@pytest.mark.parametrize(
    ("least_s", "most_s", "verdict"),
    [
        (0.7, 0.8, SpeedVerdict.FASTER),
        (0.7, 0.95, SpeedVerdict.CANNOT_TELL),
        (0.95, 1.0, SpeedVerdict.CANNOT_TELL),
        (1.05, 1.3, SpeedVerdict.CANNOT_TELL),
        (1.2, 1.3, SpeedVerdict.SLOWER),
    ],
)
def test_a_gain_below_the_error_of_the_run_itself_is_no_gain(
    least_s: float, most_s: float, verdict: SpeedVerdict
) -> None:
    found = PredictedSpeed(step_s=(least_s + most_s) / 2, least_s=least_s, most_s=most_s, tokens=100.0, drawn_share=0.0)
    assert verdict_of(found, own_s=1.0, margin=0.1) is verdict
    assert verdict_of(found, own_s=1.0, margin=0.1, error=0.2) is SpeedVerdict.CANNOT_TELL, "the range is printed wider"


def row(
    preset: str, step_s: float, verdict: SpeedVerdict, *, tokens: float = 1000.0, bound: str = "0"
) -> PredictedSchedule:
    settings = f"--schedule.preset {preset}"
    return PredictedSchedule(
        name=preset, preset=preset, settings=settings, bound=bound, step_s=step_s, least_s=step_s, most_s=step_s,
        tokens=tokens, drawn_share=0.0, verdict=verdict,
    )  # fmt: skip


OWN = row("sync", 2.0, SpeedVerdict.THIS_RUN)


def test_the_fastest_schedule_is_recommended_with_its_settings() -> None:
    rows = [
        OWN,
        row("staleflow", 1.0, SpeedVerdict.FASTER, bound="1"),
        row("tail", 1.5, SpeedVerdict.FASTER, tokens=500),
    ]
    first, *others = sentences(rows, 0.05, [0, 1, 0], assumption=None)
    assert first.startswith("Use staleflow: 1.00 s per step are predicted, 2.00 s for the schedule of this run (2.00")
    assert first.endswith("--schedule.preset staleflow")
    assert any("Its bound is 1; that of this run is 0" in line and "tail is the fastest" in line for line in others)


def test_fewer_tokens_in_a_step_are_said() -> None:
    rows = [OWN, row("tail", 1.5, SpeedVerdict.FASTER, tokens=500)]
    said = list(sentences(rows, 0.05, [0, 0], assumption=None))
    assert said[0].startswith("Use tail: ")
    assert any("trains 50% fewer tokens" in line and "3 ms, this run 2 ms" in line for line in said)
    assert "For a trained token sync is the fastest: 2 ms." in said


def test_short_steps_that_cost_more_for_a_token_are_not_recommended_if_others_are_faster_too() -> None:
    tail, other = row("tail", 1.2, SpeedVerdict.FASTER, tokens=500), row("one-step", 1.5, SpeedVerdict.FASTER)
    said = list(sentences([OWN, tail, other], 0.05, [0, 0, 0], assumption=None))
    assert said[0].startswith("Use one-step: 1.50 s")
    assert any(line.startswith("A step of tail (1.20 s) trains 50% fewer tokens") for line in said)


def test_schedules_that_may_be_as_fast_are_named() -> None:
    rows = [
        OWN,
        row("a", 1.0, SpeedVerdict.FASTER),
        row("b", 1.03, SpeedVerdict.FASTER),
        row("c", 1.5, SpeedVerdict.FASTER),
    ]
    assert "It cannot be told from b, which may be as fast." in sentences(rows, 0.05, [0] * 4, assumption=None)


def test_where_nothing_is_faster_the_run_keeps_its_schedule() -> None:
    rows = [OWN, row("a", 1.95, SpeedVerdict.CANNOT_TELL)]
    [said] = sentences(rows, 0.05, [0, 0], assumption=None)
    assert said.startswith("Keep sync: no schedule is predicted to be faster by more than 5.0%")


def test_the_whole_advice_is_written_and_read_again(journal: list[Entry], tmp_path: Path) -> None:
    lines: list[str] = []
    evidence = Evidence.of(journal, CONFIG, num_steps=4)
    advice = make_advice(evidence, lines.append)
    assert lines[0] == "simulating sync, the schedule of the run"
    assert len(lines) == len(advice.rows)
    assert advice.own.step_s == pytest.approx(advice.recorded_s, rel=0.1)
    assert advice.margin >= max(advice.error, LEAST_MARGIN)
    assert advice.error >= abs(advice.own.step_s / advice.recorded_s - 1)
    assert [each.step_s for each in advice.rows[1:]] == sorted(each.step_s for each in advice.rows[1:])
    advice_file.write(advice, tmp_path / advice_file.FILE)
    assert advice_file.read(tmp_path) == advice


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "rows": []}'])
def test_a_file_that_is_no_advice_is_read_as_none(text: str, tmp_path: Path) -> None:
    (tmp_path / advice_file.FILE).write_text(text)
    assert advice_file.read(tmp_path) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"rows": []}, {"rows": 3}, {"rows": [3]}, {"num_steps": "8"}, {"recorded_s": None}, {"sentences": [1]},
        {"excluded": ["ab", "c"]}, {"step_s": "fast"}, {"name": None}, {"verdict": "quick"},
    ],
)  # fmt: skip
def test_advice_with_wrong_values_is_read_as_none(changed: dict[str, Any], tmp_path: Path) -> None:
    good = Advice(
        num_recorded=9, num_steps=5, num_draws=3, recorded_s=2.1, error=0.06, stretch=0.94, margin=0.06, rows=(OWN,),
        excluded=(("one-step", "why"),), sentences=("Keep sync",),
    ).to_dict()  # fmt: skip
    (tmp_path / advice_file.FILE).write_text(json.dumps(good))
    assert advice_file.read(tmp_path) is not None
    in_row = set(changed) & {"step_s", "name", "verdict"}
    bad = good | {"rows": [good["rows"][0] | changed]} if in_row else good | changed
    (tmp_path / advice_file.FILE).write_text(json.dumps(bad))
    assert advice_file.read(tmp_path) is None


def test_a_damaged_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="damaged"):
        Advice.from_dict({"format": 1, "rows": [{}]})
