"""Presets, and how settings move away from them."""

from __future__ import annotations

import pytest

from tailrace.config.load import SettingsError, assemble
from tailrace.core.ledger.admission import AdmissionRule
from tailrace.core.schedule import Leftovers
from tailrace.policies.strategies import KINDS, Migration, Routing


def preset(**schedule: object) -> dict[str, object]:
    found = assemble({"schedule": schedule}, {}).schedule.resolved()
    return {name: getattr(found, name) for name in ("leftovers", "max_staleness", "bound", *KINDS)}


def test_staleflow_is_strict_and_has_every_strategy() -> None:
    assert preset(preset="staleflow", max_staleness=3) == {
        "leftovers": Leftovers.KEEP,
        "max_staleness": 3,
        "bound": AdmissionRule.DEADLINE,
        **{kind: members.named("throughput") for kind, members in KINDS.items()},
    }


def test_each_strategy_can_be_switched_to_its_vanilla_twin_or_on_elsewhere() -> None:
    for kind in KINDS:
        found = preset(preset="staleflow", **{kind: "vanilla"})
        assert [found[other] is KINDS[other].named("vanilla") for other in KINDS] == [other == kind for other in KINDS]
    assert preset(preset="sync", migration="throughput")["migration"] is Migration.THROUGHPUT
    assert preset(preset="async-cap")["routing"] is Routing.FIXED


def test_the_settings_offer_the_strategies_of_the_table_and_no_others() -> None:
    for kind, members in KINDS.items():
        for strategy in members:
            assert preset(preset="staleflow", **{kind: strategy.value})[kind] is strategy
        expected = "should be " + ".*".join(f"'{strategy.value}'" for strategy in members)
        with pytest.raises(SettingsError, match=f"schedule.{kind}: input {expected}, got 'random'"):
            preset(**{kind: "random"})


def test_how_the_bound_is_kept_can_be_chosen_where_there_is_one() -> None:
    assert preset(preset="async-cap")["bound"] is AdmissionRule.COUNT
    assert preset(preset="async-cap", bound="order")["bound"] is AdmissionRule.ORDER
    assert preset(preset="async-cap", bound="deadline")["bound"] is AdmissionRule.DEADLINE
    assert preset(preset="active-partial", bound="count")["max_staleness"] is None, "it has no bound to keep"
    assert preset(preset="active-partial", max_staleness=3)["bound"] is AdmissionRule.DEADLINE


def test_no_bound_is_none_whether_the_preset_or_the_setting_says_it() -> None:
    assert preset(preset="active-partial")["max_staleness"] is None
    assert preset(preset="tail-batching", max_staleness="unbounded")["max_staleness"] is None
    assert preset(preset="tail-batching", max_staleness=0)["max_staleness"] == 0
