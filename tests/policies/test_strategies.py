"""The tables of strategies: what a name builds, and which names and combinations are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.config.schedule_overrides import ScheduleOverrides
from tailrace.core import codec
from tailrace.core.ledger.admission import AdmissionRule
from tailrace.core.schedule import Coordination, Leftovers, Schedule
from tailrace.policies.migration.never import Never
from tailrace.policies.migration.rebalance import Rebalance
from tailrace.policies.routing.fixed import Fixed
from tailrace.policies.routing.least_loaded import LeastLoaded
from tailrace.policies.routing.waterfall import Waterfall
from tailrace.policies.strategies import KINDS, policies_of
from tailrace.policies.synchronization.as_published import AsPublished
from tailrace.policies.synchronization.when_useful import WhenUseful

KEEP = {"leftovers": Leftovers.KEEP, "max_staleness": 1}


PAGE = Path(__file__).parents[2] / "docs" / "schedules.md"


def _names(kind: str) -> str:
    return ", ".join(each.value for each in KINDS[kind])


def schedule(coordination: dict[str, Any], **changes: Any) -> Schedule:
    given = {"train_source": "train", "batch_size": 4, "group_size": 2, "max_steps": 3, "num_instances": 2, **changes}
    return Schedule(**given, coordination=Coordination(**coordination))


def test_the_names_in_journals_build_what_they_have_always_built() -> None:
    built = {
        kind: {each.value: type(getattr(policies_of(schedule({kind: each.value}, **KEEP)), kind)) for each in members}
        for kind, members in KINDS.items()
    }
    assert built == {
        "routing": {"vanilla": LeastLoaded, "fixed": Fixed, "throughput": Waterfall},
        "synchronization": {"vanilla": AsPublished, "throughput": WhenUseful},
        "migration": {"vanilla": Never, "throughput": Rebalance},
    }


def test_a_journal_holds_the_names_as_they_are() -> None:
    chosen = Coordination(routing="fixed")
    written = json.loads(json.dumps(codec.encode(chosen)))
    assert {kind: written[kind] for kind in KINDS} == {
        "routing": "fixed",
        "synchronization": "vanilla",
        "migration": "vanilla",
    }
    assert codec.decode(Coordination, written) == chosen


def test_policies_get_the_numbers_of_the_schedule() -> None:
    numbers = {"kv_tokens": 7, "max_running": 5, "min_gain": 0.5, "prompt_length": 3, "max_gap": 2.0, "max_waiting": 1}
    policies = policies_of(schedule(dict.fromkeys(KINDS, "throughput") | numbers, **KEEP))
    assert policies.routing == Waterfall(kv_budget=7, max_running=5, min_gain=0.5, prompt_length=3)
    assert policies.synchronization == WhenUseful(routing=policies.routing, max_gap=2.0)
    assert policies.migration == Rebalance(max_waiting=1, max_gap=2.0)


@pytest.mark.parametrize(
    ("coordination", "sentence"),
    [
        *(({kind: "no such"}, f"no {kind} strategy 'no such'; there are {_names(kind)}$") for kind in KINDS),
        ({"routing": "fixed", "migration": "throughput"}, "fixed routing returns responses"),
        ({"routing": "fixed", "synchronization": "throughput"}, "fixed routing returns responses"),
    ],
)
def test_an_unknown_name_or_combination_is_refused(coordination: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        policies_of(schedule(coordination, **KEEP))


@pytest.mark.parametrize("kind", KINDS)
def test_help_and_docs_name_every_strategy(kind: str) -> None:
    sentence = ScheduleOverrides.model_fields[kind].description
    assert sentence is not None
    for each in KINDS[kind]:
        assert f"`{each.value}`" in sentence
        assert f"`{each.value}`" in PAGE.read_text()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, {**KEEP, "admission": AdmissionRule.COUNT}], ids=["rounds", "not strict"])
def test_planned_strategies_need_a_strict_bound_and_no_rounds(kind: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"\({kind} 'throughput'\).* need 'keep' and a strict bound"):
        policies_of(schedule({kind: "throughput"}, **changes))
    assert not policies_of(schedule({kind: "vanilla"}, **changes)).plans
    assert policies_of(schedule({kind: "throughput"}, **KEEP)).plans
    assert policies_of(schedule({kind: "throughput"}, **KEEP, admission=AdmissionRule.ORDER)).plans
