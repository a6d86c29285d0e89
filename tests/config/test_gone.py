"""Settings that are gone: ignored where they had their default, named where they had another value."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.config.continuation import as_json, differences, may_change
from tailrace.config.declared import leaves
from tailrace.config.gone import GONE, Gone, without_gone
from tailrace.config.settings import Settings


def stored_with(name: str, value: Any) -> dict[str, Any]:
    stored = as_json(Settings())
    place = stored
    *parents, key = name.split(".")
    for parent in parents:
        place = place.setdefault(parent, {})
    place[key] = value
    return stored


def test_what_is_gone_is_no_setting() -> None:
    assert GONE.keys() & {name for name, _ in leaves(Settings)} == set()


@pytest.mark.parametrize("name", GONE)
def test_a_gone_setting_is_ignored_where_it_had_its_default(name: str) -> None:
    assert differences(Settings(), stored_with(name, GONE[name].default)) == []


@pytest.mark.parametrize("name", GONE)
def test_another_value_of_a_gone_setting_is_the_only_difference_and_keeps_the_run_from_going_on(name: str) -> None:
    [found] = differences(Settings(), stored_with(name, 4))
    assert found.label == f"{name} was 4, and there is no such setting any more"
    assert not may_change(name)
    assert not found.is_on_request
    assert found.is_told


def test_a_value_of_null_is_another_value_than_a_number() -> None:
    [found] = differences(Settings(), stored_with("ray.local_object_store_mb", None))
    assert found.label.startswith("ray.local_object_store_mb was null")


def test_any_setting_of_any_section_can_go() -> None:
    gone = {"a.b.c": Gone(1, ""), "a.d": Gone([], ""), "e": Gone(None, "")}
    stored = {"a": {"b": {"c": 1, "kept": 2}, "d": []}, "e": None, "f": 3}
    assert without_gone(stored, gone) == ({"a": {"b": {"kept": 2}}, "f": 3}, {})
    others = {"a": {"b": {"c": 5}, "d": [1]}, "e": 0}
    assert without_gone(others, gone) == ({"a": {"b": {}}}, {"a.b.c": 5, "a.d": [1], "e": 0})
