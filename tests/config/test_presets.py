"""Presets, and how settings move away from them."""

from __future__ import annotations

from tailrace.config.load import assemble
from tailrace.config.presets import STRATEGIES
from tailrace.core.ledger.admission import Admission
from tailrace.core.schedule import Leftovers, Strategy


def preset(**schedule: object) -> dict[str, object]:
    found = assemble({"schedule": schedule}, {}).schedule.resolved()
    return {name: getattr(found, name) for name in ("leftovers", "max_staleness", "bound", *STRATEGIES)}


def test_staleflow_is_strict_and_has_every_strategy() -> None:
    assert preset(preset="staleflow", max_staleness=3) == {
        "leftovers": Leftovers.KEEP,
        "max_staleness": 3,
        "bound": Admission.DEADLINE,
        **dict.fromkeys(STRATEGIES, Strategy.THROUGHPUT),
    }


def test_each_strategy_can_be_switched_to_its_vanilla_twin_or_on_elsewhere() -> None:
    for name in STRATEGIES:
        found = preset(preset="staleflow", **{name: "vanilla"})
        assert [found[other] is Strategy.VANILLA for other in STRATEGIES] == [other == name for other in STRATEGIES]
    assert preset(preset="sync", migration="throughput")["migration"] is Strategy.THROUGHPUT
    assert preset(preset="async-cap")["routing"] is Strategy.FIXED


def test_how_the_bound_is_kept_can_be_chosen_where_there_is_one() -> None:
    assert preset(preset="async-cap")["bound"] is Admission.COUNT
    assert preset(preset="async-cap", bound="order")["bound"] is Admission.ORDER
    assert preset(preset="async-cap", bound="deadline")["bound"] is Admission.DEADLINE
    assert preset(preset="active-partial", bound="count")["max_staleness"] is None, "it has no bound to keep"
    assert preset(preset="active-partial", max_staleness=3)["bound"] is Admission.DEADLINE


def test_no_bound_is_none_whether_the_preset_or_the_setting_says_it() -> None:
    assert preset(preset="active-partial")["max_staleness"] is None
    assert preset(preset="tail-batching", max_staleness="unbounded")["max_staleness"] is None
    assert preset(preset="tail-batching", max_staleness=0)["max_staleness"] == 0
