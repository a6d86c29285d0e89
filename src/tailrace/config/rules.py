"""Rules between settings: each returns a sentence when it is broken. All are checked before any work starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tailrace.config.settings import Settings

TRAIN_SOURCE = "train"
"""The name of the training prompts among the sources; no evaluation set may use it."""


def broken_rules(settings: Settings) -> list[str]:
    return [sentence for rule in _RULES for sentence in rule(settings)]


def _evaluation(settings: Settings) -> Iterator[str]:
    names = [eval_set.name for eval_set in settings.eval]
    if settings.eval_interval and not names:
        yield "eval_interval is given but there is no evaluation set; add an [[eval]] table with name and path"
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"two evaluation sets are called '{name}'; give each a name of its own"
    if TRAIN_SOURCE in names:
        yield f"an evaluation set cannot be called '{TRAIN_SOURCE}': that name means the training prompts"


def _learning(settings: Settings) -> Iterator[str]:
    if settings.rollout.temperature == 0:
        yield "rollout.temperature is 0: greedy responses of a prompt are all the same and teach nothing"
    if settings.rollout.n_samples_per_prompt == 1:
        yield "rollout.n_samples_per_prompt is 1: grpo compares the responses of a group, so it needs at least 2"
    correction = settings.algorithm.importance_sampling.type
    if correction != "none" and settings.algorithm.old_logprobs == "behaviour":
        yield (
            f"algorithm.importance_sampling.type is '{correction}' but algorithm.old_logprobs is 'behaviour', whose"
            " ratio already corrects for the rollout's log-probs; set old_logprobs to 'recompute'"
        )


def _engine(settings: Settings) -> Iterator[str]:
    rollout = settings.rollout
    longest = settings.data.max_prompt_length + rollout.max_response_length
    if rollout.kv_tokens is not None and rollout.kv_tokens < longest:
        yield f"rollout.kv_tokens ({rollout.kv_tokens}) cannot hold one longest response ({longest} tokens with prompt)"
    if rollout.deterministic and settings.model.dtype != "float32":
        yield f"rollout.deterministic needs model.dtype 'float32', got '{settings.model.dtype}'"
    longest_eval = max((s.max_response_length or 0 for s in settings.eval), default=0)
    if longest_eval > rollout.max_response_length:
        yield (
            f"an evaluation set allows {longest_eval} tokens, more than rollout.max_response_length"
            f" ({rollout.max_response_length}), which sizes the engine"
        )


_RULES: tuple[Callable[[Settings], Iterator[str]], ...] = (_evaluation, _learning, _engine)
