"""The tables of strategies: what a name builds, and which names and combinations are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

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


def schedule(coordination: dict[str, Any], **changes: Any) -> Schedule:
    given = {"train_source": "train", "batch_size": 4, "group_size": 2, "max_steps": 3, "num_instances": 2, **changes}
    return Schedule(**given, coordination=Coordination(**coordination))


def test_the_names_in_journals_build_what_they_have_always_built() -> None:
    built = {
        kind: {name: type(getattr(policies_of(schedule({kind: name}, **KEEP)), kind)) for name in names}
        for kind, names in {
            "routing": ("vanilla", "fixed", "throughput"),
            "synchronization": ("vanilla", "throughput"),
            "migration": ("vanilla", "throughput"),
        }.items()
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
        ({"routing": "random"}, "no routing strategy 'random'; there are vanilla, fixed, throughput"),
        ({"synchronization": "fixed"}, "no synchronization strategy 'fixed'; there are vanilla, throughput"),
        ({"migration": "fixed"}, "no migration strategy 'fixed'; there are vanilla, throughput"),
        ({"routing": "fixed", "migration": "throughput"}, "fixed routing returns responses"),
        ({"routing": "fixed", "synchronization": "throughput"}, "fixed routing returns responses"),
    ],
)
def test_an_unknown_name_or_combination_is_refused(coordination: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        policies_of(schedule(coordination, **KEEP))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, {**KEEP, "admission": AdmissionRule.COUNT}], ids=["rounds", "not strict"])
def test_planned_strategies_need_a_strict_bound_and_no_rounds(kind: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"\({kind} 'throughput'\).* need 'keep' and a strict bound"):
        policies_of(schedule({kind: "throughput"}, **changes))
    assert not policies_of(schedule({kind: "vanilla"}, **changes)).plans
    assert policies_of(schedule({kind: "throughput"}, **KEEP)).plans
    assert policies_of(schedule({kind: "throughput"}, **KEEP, admission=AdmissionRule.ORDER)).plans
