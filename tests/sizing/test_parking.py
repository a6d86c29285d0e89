"""What becomes of instances whose parallel size is not used, and the memory that they take."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.commands.preflight.dry_run import dry_run_on
from tailrace.config.load import SettingsError
from tailrace.config.memory_release import may_park
from tailrace.config.schedule_settings import ScheduleSettings
from tailrace.config.settings import Settings
from tailrace.sizing.card import parse_card
from tailrace.sizing.fitting import fit
from tailrace.sizing.memory_plan import plan
from tailrace.sizing.model_shape import ModelShape
from tailrace.sizing.parking import parking
from tailrace.sizing.parts import CONTEXT_BYTES

GIB = 2**30
SHAPE = ModelShape(
    vocab_size=32000, hidden_size=1024, intermediate_size=4096, num_layers=8, num_heads=16, num_kv_heads=8, head_dim=64
)


def settings(**rollout: Any) -> Settings:
    sizes = {"engine": "vllm", "num_instances": 4, "parallel_sizes": [1, 2, 4], "kv_tokens": 40_000, "max_running": 64}
    return Settings.model_validate({"rollout": sizes | rollout, "schedule": {"parallelism": "preemptions"}})


def test_instances_wait_if_engine_and_host_allow_it_and_a_line_says_so() -> None:
    found = parking(settings(), can_release=True, needed=8 * GIB, has=30 * GIB)
    assert found == (
        True,
        "parallel sizes 1, 2, 4: instances of another size wait with released memory; about 8.0 GiB of main memory with"
        " their processes, of 30.0 GiB available",
    )


def test_where_they_cannot_wait_they_end_and_the_line_says_why() -> None:
    def why(given: Settings, *, can_release: bool = True, has: int | None = 30 * GIB) -> str:
        found = parking(given, can_release=can_release, needed=8 * GIB, has=has)
        assert not found.parks
        return str(found.line).partition("because ")[2]

    assert why(settings(park="never")) == "rollout.park is 'never'"
    assert why(settings(), can_release=False) == "the engine cannot release its memory here"
    assert "needs about 8.0 GiB of main memory, and 4.0 GiB are available" in why(settings(), has=4 * GIB)
    on_ray = Settings.model_validate(settings().model_dump() | {"runtime": "ray"})
    assert "on Ray" in why(on_ray)
    assert parking(settings(park="always"), can_release=True, needed=8 * GIB, has=4 * GIB).parks
    assert parking(settings(), can_release=True, needed=8 * GIB, has=None).parks


def test_a_size_that_never_changes_parks_nobody_and_a_line_says_that_it_is_fixed() -> None:
    fixed = Settings.model_validate({"rollout": {"parallel_sizes": [1, 2], "num_instances": 2}})
    line = "rollout.parallel_sizes: the size does not change, because schedule.parallelism is 'fixed'"
    assert parking(fixed, can_release=True, needed=0, has=None) == (False, line)
    assert parking(Settings(), can_release=True, needed=0, has=None) == (False, None)
    # The preset brings `preemptions`, and a line of its own says why it is left out.
    left_out = fixed.model_copy(update={"schedule": ScheduleSettings(preset="rollpacker", leftovers="keep")})
    assert parking(left_out, can_release=True, needed=0, has=None) == (False, None)
    assert not may_park(fixed)
    assert may_park(settings())


def test_the_size_that_takes_most_of_a_device_is_planned_and_parked_processes_are_counted() -> None:
    def rollout(**changes: Any) -> Any:
        return plan(SHAPE, settings(**changes), is_cuda=True, num_devices=4).rollout

    ending, waiting = rollout(park="never"), rollout()
    assert ending.name == "rollout, size 1", "weights are not divided there"
    alone = plan(SHAPE, settings(parallel_sizes=[]), is_cuda=True, num_devices=4).rollout
    assert ending.parts == alone.parts
    parked = waiting.parts[-1]
    assert parked.name == "parked instances"
    assert parked.num_bytes > 2 * CONTEXT_BYTES, "a context and graphs of each other size"
    assert parked.is_never_released
    assert waiting.parts[:-1] == ending.parts


def test_the_host_holds_the_processes_of_all_sizes_if_they_wait_and_of_the_largest_number_if_not() -> None:
    def processes(park: str) -> int:
        given = settings(park=park)
        [host] = plan(SHAPE, given, is_cuda=True, num_devices=4).hosts
        return next(part.num_bytes for part in host.parts if part.name == "processes") // CONTEXT_BYTES

    assert processes("never") == 1 + 6, "the trainer, and two instances of three processes"
    assert processes("always") == 1 + 4 + 6 + 5


def test_what_is_fitted_fits_with_every_size() -> None:
    given = settings(kv_tokens=None, max_running=None)
    fitted = fit(24 * GIB, SHAPE, given, num_devices=4)
    assert plan(SHAPE, fitted.applied(given), is_cuda=True, num_devices=4).num_bytes <= 24 * GIB
    larger = settings(kv_tokens=None, max_running=None, num_instances=2, tensor_parallel_size=2)
    found = fit(24 * GIB, SHAPE, larger, num_devices=4).applied(larger)
    assert plan(SHAPE, found, is_cuda=True, num_devices=4).num_bytes <= 24 * GIB


def said(card: str, **rollout: Any) -> str:
    sizes = {"engine": "vllm", "num_instances": 4, "parallel_sizes": [1, 2, 4]}
    lines: list[str] = []
    given = {
        "model": {"path": "Qwen/Qwen2.5-1.5B", "dtype": "bfloat16"},
        "rollout": sizes | rollout,
        "schedule": {"max_steps": 40, "parallelism": "preemptions", "placement": "disaggregated"},
        "reward": {"functions": ["exact_match"]},
        "eval_interval": None,
    }
    dry_run_on(parse_card(card), Settings.model_validate(given), lines.append)
    return "\n".join(lines)


def test_a_dry_run_on_other_cards_says_that_the_size_does_not_change() -> None:
    lines: list[str] = []
    given = {
        "model": {"path": "Qwen/Qwen2.5-1.5B", "dtype": "bfloat16"},
        "rollout": {"engine": "vllm", "num_instances": 2, "parallel_sizes": [1, 2]},
        "schedule": {"max_steps": 40, "placement": "disaggregated"},
        "reward": {"functions": ["exact_match"]},
        "eval_interval": None,
    }
    dry_run_on(parse_card("3xH100"), Settings.model_validate(given), lines.append)
    assert "rollout.parallel_sizes: the size does not change, because schedule.parallelism is 'fixed'" in lines


def test_a_dry_run_for_other_cards_counts_all_sizes() -> None:
    text = said("5xH100")
    assert "instances of parallel sizes 1, 2, 4 take turns on the GPUs of rollout" in text
    assert "rollout, size 1" in text
    assert "parked instances" in text
    assert "instances of another size wait with released memory; about" in text
    assert "parked instances" not in said("5xH100", park="never")
    with pytest.raises(SettingsError, match="needs 5 GPUs"):
        said("3xH100")
    with pytest.raises(
        SettingsError, match=r"one of rollout\.parallel_sizes is 8, but the model has 12 attention heads"
    ):
        said("9xH100", parallel_sizes=[1, 8], num_instances=8)
    with pytest.raises(SettingsError, match="native engine uses at most 1"):
        said("5xH100", engine="native")
