from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.worlds import response, small_scenario
from tailrace.cli.main import main
from tailrace.config import schedule_builder
from tailrace.config.load import leaves
from tailrace.config.settings import Settings
from tailrace.core.journal import decode
from tailrace.core.ledger.admission import AdmissionRule
from tailrace.core.schedule import Leftovers, Placement
from tailrace.observe.account import Account
from tailrace.sim.lengths import DrawnLengths
from tailrace.sim.named_schedule import schedule_of
from tailrace.sim.scenario import ScenarioError
from tailrace.sim.scenario_file import load_length_grid, load_scenario
from tailrace.sim.scenario_sections import GridEntry, VariantSection

SCENARIOS = Path(__file__).parents[2] / "scenarios"
FILES = sorted(
    path
    for path in SCENARIOS.glob("*.toml")
    if path.name != "length_grid.toml" and not path.name.startswith("cluster_")
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_scenario_file_is_sound_and_names_its_sources(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    for name in [*scenario.schedule.compare, *scenario.schedule.variants]:
        schedule_of(scenario, name)
    sections = (scenario, scenario.schedule, scenario.engine, scenario.trainer, scenario.reward, scenario.lengths)
    assert all(section.source for section in sections)


@pytest.mark.parametrize("family", ["rollpacker_[1-9]*", "rollpacker_rewards_*"])
def test_entries_of_one_paper_share_their_assumptions(family: str) -> None:
    def shared(path: Path) -> tuple[object, ...]:
        s = load_scenario(path)
        kinds = (s.reward.kinds, s.reward.num_workers, s.reward.code_tests)
        judge = s.reward.judge and s.reward.judge.model_dump(exclude={"devices", "workers", "kv_tokens"})
        lengths = (s.lengths.kind, s.lengths.median, s.lengths.between, s.lengths.within)
        engine = s.engine.k4, s.engine.prompt_length, s.trainer.fixed_s, s.trainer.publish_s
        return *engine, kinds, judge and tuple(judge.items()), lengths

    entries = [path for path in FILES if path.match(f"{family}.toml")]
    assert len(entries) >= 3
    assert len({shared(path) for path in entries}) == 1


def test_a_scenario_takes_the_distributions_of_the_grid() -> None:
    grid = load_length_grid(SCENARIOS / "length_grid.toml")
    scenario = load_scenario(FILES[0])
    for entry in [*grid.long_tailed, *grid.not_long_tailed]:
        for cap in grid.caps:
            other = scenario.with_lengths(entry, cap)
            assert isinstance(other.make_lengths(), DrawnLengths)
            assert other.world_costs().max_response_length == cap
    assert scenario.with_seed(7).make_lengths() != scenario.make_lengths()


def spread(entry: GridEntry, cap: int) -> float:
    """The longest of a batch over the median."""
    lengths = DrawnLengths(seed=0, **entry.model_dump(exclude={"source", "name"}))
    ids = [response(prompt, member) for prompt in range(64) for member in range(8)]
    drawn = sorted(min(cap, lengths.draw(each, 0)) for each in ids)
    return drawn[-1] / drawn[len(drawn) // 2]


def test_the_grid_calls_long_tailed_what_is() -> None:
    grid = load_length_grid(SCENARIOS / "length_grid.toml")
    longest_cap = max(grid.caps)
    assert all(spread(entry, longest_cap) > 5 for entry in grid.long_tailed)
    assert all(spread(entry, longest_cap) < 2 for entry in grid.not_long_tailed)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"engine__kv_capasity": 3}, "unknown key engine.kv_capasity; did you mean engine.kv_capacity?"),
        ({"trainer__kv_capacity": 3}, "unknown key trainer.kv_capacity; did you mean engine.kv_capacity?"),
        ({"engine__k1": -1.0}, "engine.k1: input should be greater than or equal to 0, got -1.0"),
        ({"engine__source": ""}, "engine.source"),
        ({"engine__kv_capacity": 300}, "engine.kv_capacity is 300, but a response with its prompt may have 520 tokens"),
    ],
)
def test_a_wrong_scenario_is_refused_with_a_sentence(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        small_scenario(**change)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[engine]", "[engine", "cannot parse the scenario {path}: Expected ']' at the end of a table declaration (at"),
        (
            "num_instances",
            "num_instanses",
            "{path}: unknown key engine.num_instanses; did you mean engine.num_inst",
        ),
        ("num_steps = ", 'num_steps = "x" #', "{path}: schedule.num_steps: input should be a valid integer, unable to"),
        ("[trainer]", "[coach]", "{path}: trainer is missing"),
        ("compare = ", 'compare = ["sinc"] #', "{path}: schedule.compare: no schedule 'sinc'; there are sync, "),
        ("trace = ", 'trace = "no.json" #', "{path}: lengths.trace: there is no file "),
        ("[trainer]", "[schedule.variants.a]\npreset = 'rollout-only'\n[trainer]", "'rollout-only' does not train"),
        (
            "[trainer]",
            "[schedule.variants.a]\npreset = 'sync'\nmax_staleness = 'soon'\n[trainer]",
            "{path}: schedule.variants.a.max_staleness: input should be a valid integer, unable to parse string as an "
            "integer or input should be 'unbounded', got 'soon'",
        ),
    ],
)
def test_a_wrong_file_is_a_sentence_that_names_it_and_the_key(
    tmp_path: Path, old: str, new: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (SCENARIOS / "smollm2_trace.toml").read_text()
    assert old in text
    (tmp_path / "smollm2_135m_lengths.json").touch()
    path = tmp_path / "wrong.toml"
    path.write_text(text.replace(old, new, 1))
    assert main(["simulate", str(path)]) == 2
    said = capsys.readouterr().err
    assert sentence.format(path=path) in said
    assert all(len(line) < 300 for line in said.splitlines()), "a sentence repeats too much of the file"


def test_a_fault_may_name_its_source() -> None:
    fault = {"kind": "lost", "instance": 0, "at": 5.0, "source": "assumption: as often as not"}
    assert small_scenario(faults=[fault]).faults[0].source == fault["source"]


def test_an_interrupt_shows_what_was_complete_and_says_what_was_not(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    options = ["--schedules", "sync,tail-batching", "--steps", "1", "--json", str(file), "--journals", str(tmp_path)]
    command = [sys.executable, "-m", "tailrace", "simulate", str(SCENARIOS / "rollpacker_32b_32k.toml"), *options]
    (tmp_path / "tail-batching").mkdir()
    os.mkfifo(tmp_path / "tail-batching" / "journal.jsonl")  # opened, it waits for a reader
    # In the background of a shell script interrupts are ignored, and children would inherit that.
    with _interruptible():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    heard = ""
    while "simulating tail-batching" not in heard:
        heard += process.stderr.read(1)
    printed, rest = _interrupted(process)
    assert process.returncode == 1
    assert rest.endswith("tailrace: stopped while simulating tail-batching; no file was written\n")
    assert [line.split()[0] for line in printed.splitlines()] == ["schedule", "sync"]
    assert not file.exists()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it still said. A signal that comes just before the pipe is opened does not end the wait for its reader, so
    it is sent until it does."""
    for _ in range(20):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=3)
    process.kill()
    process.communicate()
    raise AssertionError("the interrupt did not end it")


def test_presets_and_variants_become_schedules() -> None:
    variants = {
        "spec": {"preset": "tail-batching", "over_provision_prompts": 1.5, "max_staleness": 1, "rounds_ahead": 1},
        "free": {"preset": "sync", "leftovers": "resume", "max_staleness": "unbounded"},
    }
    scenario = small_scenario(schedule__variants=variants, engine__placement="disaggregated")
    tail = schedule_of(scenario, "tail-batching")
    assert (tail.num_launched, tail.num_members, tail.leftovers) == (7, 5, Leftovers.DEFER)
    spec = schedule_of(scenario, "spec")
    assert (spec.num_launched, spec.num_members, spec.max_staleness, spec.rounds_ahead) == (9, 5, 1, 1)
    assert schedule_of(scenario, "free").max_staleness is None
    assert schedule_of(scenario, "async-cap").admission is AdmissionRule.COUNT


def test_a_simulated_instance_gets_as_much_at_once_as_one_of_a_run() -> None:
    rollout = {"rollout": {"max_running": 24}}
    real = schedule_builder.schedule(Settings.model_validate(rollout), {"train": 320}, prompt_length=8)
    simulated = schedule_of(small_scenario(engine__max_running=24), "sync")
    assert simulated.max_in_flight == real.max_in_flight == 48


def test_a_variant_names_its_settings_as_a_run_does() -> None:
    known = {name for name, _ in leaves(Settings)}
    for name, _ in leaves(VariantSection):
        assert (name if name.startswith("reward.") else f"schedule.{name}") in known


def test_the_names_of_older_scenario_files_are_read_too() -> None:
    variants = {
        "kept": {"preset": "tail-batching", "max_staleness": 1, "keeps_deferred_tokens": True},
        "late": {"preset": "sync", "rewards": "barrier"},
    }
    old = small_scenario(schedule__variants=variants)
    assert schedule_of(old, "kept").keep_deferred_tokens
    assert not schedule_of(old, "late").is_reward_streamed
    variants["kept"]["keep_deferred_tokens"] = variants["kept"].pop("keeps_deferred_tokens")
    variants["late"]["reward"] = {"timing": variants["late"].pop("rewards")}
    assert small_scenario(schedule__variants=variants) == old


@pytest.mark.parametrize(
    ("variant", "sentence"),
    [
        ({"keeps_deferred_tokens": True, "keep_deferred_tokens": False}, "unknown key .*keeps_deferred_tokens"),
        ({"rewards": "barrier", "reward": {"timing": "streamed"}}, "unknown key .*rewards"),
        ({"rewards": "late"}, "'streamed' or 'barrier', got 'late'"),
        ({"max_stuck_s": math.inf}, "input should be a finite number"),
    ],
)
def test_an_old_name_beside_its_new_one_and_a_wrong_value_are_refused(
    variant: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        small_scenario(schedule__variants={"a": {"preset": "sync", **variant}})


def test_an_unknown_or_unsound_schedule_is_refused() -> None:
    with pytest.raises(ScenarioError, match="no schedule 'synch'; there are sync"):
        schedule_of(small_scenario(), "synch")
    with pytest.raises(ScenarioError, match="schedule 'one-step': colocated"):
        schedule_of(small_scenario(), "one-step")


def test_the_command_prints_a_table_and_writes_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, scenario = tmp_path / "figures.json", SCENARIOS / "smollm2_trace.toml"
    options = ["--schedules", "sync", "--steps", "2", "--json", str(file), "--journals", str(tmp_path)]
    assert main(["simulate", str(scenario), *options]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1].startswith("sync  ")
    assert "396 of 2048 recorded lengths are censored" in printed.out
    assert "simulating sync" in printed.err
    [result] = json.loads(file.read_text())
    assert result["figures"]["num_steps"] == 2
    account = Account.of(decode(line) for line in (tmp_path / "sync" / "journal.jsonl").read_text().splitlines())
    assert [row["step"] for row in account.steps] == [1, 2]
    assert result["figures"]["tokens_generated"] == result["figures"]["tokens_trained"] > 0


def test_the_command_refuses_what_it_cannot_simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(tmp_path / "absent.toml")]) == 2
    assert main(["simulate", str(FILES[0]), "--schedules", "sinc"]) == 2
    assert main(["simulate", str(FILES[0]), "--fast"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("tailrace: ") for line in lines] == [True] * 3


def test_devices_are_split_between_rollout_and_training_or_serve_both_in_turns() -> None:
    scenario = load_scenario(SCENARIOS / "staleflow_30b_a3b.toml")
    half = scenario.with_split(0.5)
    assert (half.engine.num_instances, half.trainer.num_replicas, half.trainer.devices) == (8, 4, 8)
    most = scenario.scaled(2).with_split(0.75)
    assert (most.engine.num_instances, most.trainer.num_replicas, most.trainer.devices) == (24, 4, 8)
    both = scenario.colocated()
    assert (both.engine.num_instances, both.trainer.num_replicas, both.trainer.devices) == (16, 8, 16)
    assert both.engine.placement is Placement.COLOCATED
