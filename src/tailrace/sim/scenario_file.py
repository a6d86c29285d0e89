"""Reads scenario files and grids of lengths. They are TOML, and are checked before anything is simulated.

An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from tailrace.config import presets
from tailrace.config.complaints import read_table, sentences
from tailrace.config.declared import leaves
from tailrace.sim.parallel_section import ParallelSection
from tailrace.sim.reward_sections import JudgeSection, TestsSection
from tailrace.sim.scenario import Scenario, ScenarioError
from tailrace.sim.scenario_sections import LengthGrid, RampSection, ScheduleSection
from tailrace.sim.section import ScenarioSection

Checked = TypeVar("Checked", bound=ScenarioSection)


def load_scenario(path: Path) -> Scenario:
    return check(read_table(path, "scenario"), path)


def load_length_grid(path: Path) -> LengthGrid:
    return _validated(LengthGrid, read_table(path, "length grid"), path)


def check(data: dict[str, Any], path: Path) -> Scenario:
    """Return the scenario; ``ScenarioError`` if it is wrong. ``path``: its file. Traces are relative to its folder."""
    scenario = _validated(Scenario, data, path)
    for key, name, known in _names(scenario.schedule):
        try:
            presets.check_trains(name, more=known)
        except ValueError as error:
            raise ScenarioError(f"{path}: {key}: {error}") from None
    if (trace := scenario.lengths.trace) is not None:
        if not (path.parent / trace).is_file():
            raise ScenarioError(f"{path}: lengths.trace: there is no file {path.parent / trace}")
        lengths = scenario.lengths.model_copy(update={"trace": path.parent / trace})
        scenario = scenario.model_copy(update={"lengths": lengths})
    _check_sizes(scenario, path)
    longest = scenario.engine.prompt_length + scenario.lengths.max_response_length
    judge = scenario.reward.judge
    taken = 0 if judge is None else judge.kv_tokens
    if longest > (held := scenario.engine.kv_capacity - taken):
        without = " without reward.judge.kv_tokens" if taken else ""
        raise ScenarioError(
            f"{path}: engine.kv_capacity is {held}{without}, but a response with its prompt may have {longest} tokens;"
            " raise it"
        )
    return scenario


def _check_sizes(scenario: Scenario, path: Path) -> None:
    """Raise ``ScenarioError`` unless instances of every parallel size hold a response."""
    engine, longest = scenario.engine, scenario.engine.prompt_length + scenario.lengths.max_response_length
    if (known := engine.parallel) is None:
        return
    if engine.devices_per_instance not in known.sizes:
        raise ScenarioError(
            f"{path}: engine.parallel.sizes: engine.devices_per_instance, {engine.devices_per_instance}, is not in"
            f" {list(known.sizes)}"
        )
    if known.sizes[-1] > (devices := engine.num_instances * engine.devices_per_instance):
        raise ScenarioError(f"{path}: engine.parallel.sizes: {known.sizes[-1]} is more than the {devices} devices")
    for size, costs in scenario.costs_of_sizes().items():
        if longest > (held := costs.engine.kv_capacity):
            raise ScenarioError(
                f"{path}: engine.parallel.sizes: with size {size} the KV cache has {held} tokens, but a response with"
                f" its prompt may have {longest}; leave {size} out"
            )


def _names(chosen: ScheduleSection) -> Iterator[tuple[str, str, Collection[str]]]:
    """Return (key, schedule it names, variants it may name) of every name in the file."""
    for variant, section in chosen.variants.items():
        yield f"schedule.variants.{variant}.preset", section.preset, ()
    for name in chosen.compare:
        yield "schedule.compare", name, chosen.variants


def _validated(kind: type[Checked], data: dict[str, Any], path: Path) -> Checked:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        found = sentences(error, data, lambda name: f"unknown key {name}{_nearest(name)}")
        raise ScenarioError("\n".join(f"{path}: {sentence}" for sentence in found)) from None


def _nearest(name: str) -> str:
    optional = (
        *leaves(TestsSection, "reward.code_tests."),
        *leaves(JudgeSection, "reward.judge."),
        *leaves(ParallelSection, "engine.parallel."),
        *leaves(RampSection, "lengths.ramp."),
    )
    known = [leaf for leaf, _ in (*leaves(Scenario), *optional)]
    by_key = {leaf.rsplit(".", 1)[-1]: leaf for leaf in known}
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7) or [
        by_key[key] for key in difflib.get_close_matches(name.rsplit(".", 1)[-1], by_key, n=1, cutoff=0.6)
    ]
    return f"; did you mean {close[0]}?" if close else ""
