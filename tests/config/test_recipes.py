"""Every recipe in the repository loads and passes a dry run, with every schedule and on every card that it names."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tailrace.commands.preflight.dry_run import dry_run, dry_run_on
from tailrace.commands.preflight.planned import shape_of
from tailrace.config.load import SettingsError, load, read_recipe
from tailrace.config.presets import PRESETS, ROLLOUT_ONLY
from tailrace.rewards.sandbox.bubblewrap import INSTALL_LINE
from tailrace.sizing.card import parse_card
from tailrace.sizing.fitting import RESERVE
from tailrace.sizing.memory_plan import plan

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "src" / "tailrace" / "assets" / "recipes").glob("*"))
FOR_GPUS = ("qwen-gpu", "qwen-8gpu", "qwen-64gpu")
TRAINING = [name for name in PRESETS if name != ROLLOUT_ONLY]


class Plan(NamedTuple):
    """A dry run that the first lines of a recipe name."""

    recipe: str
    overrides: dict[str, str]
    card: str


def plans(path: Path) -> list[Plan]:
    found = re.findall(r"tailrace train (\S+)(.*) --dry-run --card (\S+)", head(path))
    return [Plan(recipe, dict(re.findall(r"--(\S+) (\S+)", given)), card) for recipe, given, card in found]


def schedules(path: Path) -> list[str]:
    named = re.search(r"^# Schedules: ([\w, -]+) \(--schedule\.preset NAME\)$", head(path), re.MULTILINE)
    return named[1].split(", ") if named else [read_recipe(str(path))["schedule"]["preset"]]


def head(path: Path) -> str:
    return "\n".join(line for line in path.read_text().splitlines() if line.startswith("#"))


def is_for_gpu(path: Path) -> bool:
    return str(read_recipe(str(path))["model"].get("device", "auto")).startswith("cuda")


PLANNED = [(plan, preset) for path in RECIPES for plan in plans(path) for preset in schedules(path)]


@pytest.mark.parametrize("path", [path for path in RECIPES if not is_for_gpu(path)], ids=lambda path: path.stem)
def test_a_recipe_for_a_cpu_passes_a_dry_run(path: Path, tmp_path: Path) -> None:
    if "code_tests" in path.read_text() and shutil.which("bwrap") is None:
        pytest.skip(f"bubblewrap is missing: {INSTALL_LINE}")
    given = load(path.stem, {"output_dir": str(tmp_path / "run"), "model.device": "cpu"})
    lines: list[str] = []
    dry_run(given, lines.append)
    assert any(line.startswith("memory: about") for line in lines)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("planned", "preset"), PLANNED, ids=[f"{p.recipe}-{i}-{preset}" for i, (p, preset) in enumerate(PLANNED)]
)
def test_a_recipe_for_gpus_fits_on_the_cards_that_it_names(planned: Plan, preset: str) -> None:
    card = parse_card(planned.card)
    given = load(planned.recipe, planned.overrides | {"schedule.preset": preset})
    lines: list[str] = []
    found = dry_run_on(card, given, lines.append)
    assert f"schedule: {preset}, " in "\n".join(lines)
    memory = plan(shape_of(found.model.path), found, is_cuda=True, num_devices=card.count)
    assert memory.num_bytes <= (1 - RESERVE) * card.available


def test_recipes_for_gpus_name_cards_and_those_for_1_8_and_64_have_every_schedule() -> None:
    paths = {path.stem: path for path in RECIPES}
    assert all(plans(path) for path in RECIPES if is_for_gpu(path))
    assert all(plan.recipe == path.stem for path in RECIPES for plan in plans(path))
    for name in FOR_GPUS:
        assert sorted(schedules(paths[name])) == sorted(TRAINING)
    counts = [{parse_card(plan.card).count for plan in plans(paths[name])} for name in FOR_GPUS]
    assert counts == [{1}, {8}, {64}]


@pytest.mark.parametrize("preset", ["sync", "tail-batching", "active-partial"])
def test_schedules_without_overlap_may_take_turns(preset: str) -> None:
    given = load("qwen-8gpu", {"schedule.preset": preset, "schedule.placement": "colocated"})
    dry_run_on(parse_card("8xH100"), given, lambda line: None)


@pytest.mark.parametrize(
    ("change", "card", "words"),
    [
        ({"rollout.kv_tokens": "1_000_000"}, "8xH100", r"the run needs about \d+\.\d GiB"),
        ({}, "8xRTX4090", r"the run needs about \d+\.\d GiB, and 23\.0 GiB are available"),
        ({}, "4xH100", "trainer.num_ranks is 8, which needs as many GPUs, and there are 4: --card 4xH100"),
        ({"schedule.placement": "disaggregated"}, "8xH100", "'disaggregated' needs 16 GPUs, 8 for training"),
        ({"schedule.placement": "colocated", "schedule.preset": "staleflow"}, "8xH100", "they cannot overlap"),
        ({"rollout.tensor_parallel_size": "2"}, "8xH100", "the native engine uses at most 1"),
        ({"rollout.kv_tokns": "1"}, "8xH100", "did you mean rollout.kv_tokens"),
        ({"model.path": "someone/unknown"}, "8xH100", "the sizes of model 'someone/unknown' are not known"),
        ({"model.device": "cpu"}, "8xH100", "model.device is 'cpu'"),
    ],
)
def test_a_recipe_that_does_not_fit_or_is_mistyped_is_refused(change: dict[str, str], card: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        dry_run_on(parse_card(card), load("qwen-8gpu", change), lambda line: None)
