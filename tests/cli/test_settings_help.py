"""The help of commands that take settings: made from the declarations, short by default, whole with `--help-all`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tailrace.cli.main import main
from tailrace.cli.settings_help import settings_help
from tailrace.config.aliases import flatten
from tailrace.config.declared import leaves, sections
from tailrace.config.settings import Settings

ROOT = Path(__file__).parents[2]
KNOWN = [name for name, _ in leaves(Settings)]
COMMON = {setting.name for section in sections(Settings()) for setting in section.settings if setting.is_common}
RECIPES = sorted((ROOT / "src" / "tailrace" / "assets" / "recipes").glob("*.toml"))
VERBS = ("train", "rollout", "compare", "profile")


def shown(capsys: pytest.CaptureFixture[str], verb: str, option: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([verb, option])
    assert ended.value.code == 0
    return capsys.readouterr().out


def named(text: str) -> list[str]:
    return [name for name in re.findall(r"^  --([a-z_0-9.]+) ", text, re.MULTILINE) if name in KNOWN]


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_what_is_common_and_help_all_the_rest(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    short, whole = named(shown(capsys, verb, "--help")), named(shown(capsys, verb, "--help-all"))
    assert set(short) == COMMON & set(KNOWN)
    assert sorted(whole) == sorted(KNOWN)
    assert len(short) < len(whole) * 0.6


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_what_a_built_in_recipe_sets_is_in_the_help(recipe: Path) -> None:
    assert {name for name, _ in flatten(tomllib.loads(recipe.read_text()), KNOWN)} <= COMMON


def test_what_the_readme_names_is_in_the_help() -> None:
    text = (ROOT / "README.md").read_text()
    mentioned = {name for name in KNOWN if "." in name and re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text)}
    assert mentioned
    assert mentioned <= COMMON


@pytest.mark.parametrize(
    "words",
    [
        "--trainer.lr_schedule constant|linear|cosine\n      How the learning rate changes after warm-up."
        " (default: constant)\n",
        "--algorithm.loss_agg_mode token-mean|seq-mean-token-mean|seq-mean-token-sum\n",
        "--schedule.max_staleness INT|unbounded\n",
        "--reward.memory_mb INT|null\n",
        "--ray.reward.cpus NUMBER\n      CPUs that Ray reserves for each worker of this kind. (default: 0.5)\n",
        "--logger [tensorboard|wandb|wandb-offline|trackio, ...]\n",
        "[[eval]]: One evaluation set.\n  name TEXT\n",
        "\nlimits: How long the run waits",
    ],
)
def test_choices_and_defaults_come_from_the_declarations(words: str) -> None:
    assert words in settings_help(shows_all=True, width=118)


def test_every_section_says_what_it_is_about() -> None:
    assert [section.name for section in sections(Settings()) if not section.text] == []


def test_a_setting_that_may_be_left_empty_says_what_happens_then() -> None:
    """Others than those that replace a value of the preset, and those for which it goes without saying."""
    of_the_preset = {"over_provision_prompts", "over_provision_responses", "leftovers", "max_staleness", "bound"} | {
        "rounds_ahead", "stream", "lending", "parallelism", "routing", "synchronization", "migration"
    }  # fmt: skip
    silent = {
        setting.name
        for section in sections(Settings())
        for setting in section.settings
        if setting.default is None and not setting.is_required
        if not re.search(r"default:|null:", setting.text, re.IGNORECASE)
    }
    assert silent == {f"schedule.{name}" for name in of_the_preset} | {"rollout.from_run", "rollout.forced_lengths"}


@pytest.mark.parametrize("width", [78, 118])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert [line for line in settings_help(shows_all=True, width=width).splitlines() if len(line) > width] == []


def test_colours_add_nothing_but_colours() -> None:
    plain, coloured = (settings_help(shows_all=False, width=78, has_colours=colours) for colours in (False, True))
    assert "\033[" not in plain
    assert re.sub(r"\033\[\d+m", "", coloured) == plain


def test_help_in_a_pipe_has_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\033[" not in shown(capsys, "train", "--help-all")
