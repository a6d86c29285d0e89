"""Settings whose default depends on the card: found once, when a run begins, and then kept in its ``config.json``.

A run that is continued keeps its numbers, whatever the card has free by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tailrace.config.continuation import with_kept
from tailrace.config.parallel_layouts import with_profiled_numbers
from tailrace.config.settings import Settings
from tailrace.data.models import resolve_model
from tailrace.runtime.gpus.found_cards import find_card
from tailrace.runtime.gpus.found_judge import find_judge
from tailrace.sizing.card import Card
from tailrace.sizing.fitting import FROM_CARD, Fitted, fit
from tailrace.sizing.judge_memory import JudgeLoad
from tailrace.sizing.memory_plan import plan
from tailrace.sizing.model_shape import ModelShape


def resolve(
    settings: Settings,
    stored: Mapping[str, Any] | None = None,
    *,
    find: Callable[[Settings], Card | None] = find_card,
    shape: ModelShape | None = None,
    judge: JudgeLoad | None = None,
) -> tuple[Settings, str | None]:
    """Settings with these numbers, and a line about them if they come from a card.

    ``stored``: the settings that the run has had so far; None if it begins now. ``shape``: sizes of the model; default:
    those in its files. ``judge``: its memory; default: as its files tell.
    """
    if stored is not None:
        return with_stored(with_kept(settings, stored), stored), None
    settings = with_profiled_numbers(settings)
    if all(_value(settings, name) is not None for name in FROM_CARD):
        return settings, None
    card = find(settings)
    if card is not None and shape is None:
        shape, judge = _shape(settings), judge or _judge(settings)
    if card is None or shape is None:
        return on_cpu(settings), None
    fitted = fit(card.available, shape, settings, num_devices=card.count, judge=judge)
    fitted_settings = fitted.applied(settings)
    memory = plan(shape, fitted_settings, is_cuda=True, num_devices=card.count, judge=judge)
    return fitted_settings, _line(fitted, card, memory.num_bytes)


def on_cpu(settings: Settings) -> Settings:
    """The defaults of a CPU. The size of its KV cache follows from ``max_running``."""
    rollout, trainer = settings.rollout, settings.trainer
    return _replaced(
        settings,
        {
            "rollout.max_running": rollout.running_limit,
            "rollout.prefill_chunk": rollout.prefill_limit,
            "trainer.max_tokens_per_gpu": trainer.token_limit,
        },
    )


def with_stored(settings: Settings, stored: Mapping[str, Any]) -> Settings:
    """Numbers that are not given, as the run has them."""
    kept = {name: stored.get(name.partition(".")[0], {}).get(name.partition(".")[2]) for name in FROM_CARD}
    return on_cpu(_replaced(settings, {name: kept[name] for name in FROM_CARD if _value(settings, name) is None}))


def _shape(settings: Settings) -> ModelShape | None:
    """None if there is no such model: whoever reads it next says so."""
    try:
        return ModelShape.read(resolve_model(settings.model.path))
    except (OSError, ValueError):
        return None


def _judge(settings: Settings) -> JudgeLoad | None:
    """None if its sizes cannot be known: whoever starts it says why, if it cannot be started."""
    try:
        return find_judge(settings, is_cuda=True)
    except (OSError, ValueError):
        return None


def _line(fitted: Fitted, card: Card, needed: int) -> str:
    where = "" if card.count == 1 else " on each"
    return (
        f"{card.title}, {card.available / 2**30:.0f} GiB free{where}: max_running {fitted.max_running}, kv_tokens"
        f" {fitted.kv_tokens:,}, max_tokens_per_gpu {fitted.max_tokens_per_gpu:,};"
        f" about {needed / 2**30:.1f} GiB will be used"
    )


def _value(settings: Settings, name: str) -> Any:
    section, _, key = name.partition(".")
    return getattr(getattr(settings, section), key)


def _replaced(settings: Settings, values: Mapping[str, Any]) -> Settings:
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    return settings.model_copy(
        update={name: getattr(settings, name).model_copy(update=update) for name, update in sections.items()}
    )
