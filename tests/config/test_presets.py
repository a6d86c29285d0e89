"""Presets, and how settings move away from them."""

from __future__ import annotations

from tailrace.config.load import assemble
from tailrace.config.presets import STRATEGIES, resolved
from tailrace.core.ledger.admission import Admission
from tailrace.core.schedule import Leftovers, Strategy


def preset(**schedule: object) -> dict[str, object]:
    found = resolved(assemble({"schedule": schedule}, {}).schedule)
    return {name: getattr(found, name) for name in ("leftovers", "max_staleness", "admission", *STRATEGIES)}


def test_staleflow_is_strict_and_has_every_strategy() -> None:
    assert preset(preset="staleflow", max_staleness=3) == {
        "leftovers": Leftovers.KEEP,
        "max_staleness": 3,
        "admission": Admission.DEADLINE,
        **dict.fromkeys(STRATEGIES, Strategy.THROUGHPUT),
    }


def test_each_strategy_can_be_switched_to_its_vanilla_twin_or_on_elsewhere() -> None:
    for name in STRATEGIES:
        found = preset(preset="staleflow", **{name: "vanilla"})
        assert [found[other] is Strategy.VANILLA for other in STRATEGIES] == [other == name for other in STRATEGIES]
    assert preset(preset="sync", migration="throughput")["migration"] is Strategy.THROUGHPUT
    assert preset(preset="async-cap")["routing"] is Strategy.FIXED


def test_how_the_bound_is_kept_can_be_chosen_where_there_is_one() -> None:
    assert preset(preset="async-cap")["admission"] is Admission.COUNT
    assert preset(preset="async-cap", bound="order")["admission"] is Admission.ORDER
    assert preset(preset="async-cap", bound="deadline")["admission"] is Admission.DEADLINE
    assert preset(preset="active-partial", bound="deadline")["admission"] is Admission.UNBOUNDED
    assert preset(preset="active-partial", max_staleness=3)["admission"] is Admission.DEADLINE
