"""Rules between settings. Each yields a sentence if it is broken. All are checked before any work starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tailrace.config.judge_rules import judge_rules
from tailrace.config.objection import Objection
from tailrace.config.parallel_rules import parallel_rules
from tailrace.config.presets import ROLLOUT_ONLY
from tailrace.config.rollout_settings import CostSettings
from tailrace.config.run_preset import run_preset
from tailrace.config.settings import Settings
from tailrace.config.variants import CORRECTIONS, ESTIMATORS, LOSSES
from tailrace.core.schedule import Stream
from tailrace.policies.strategies import Scaling

TRAIN_SOURCE = "train"
"""Name of the training prompts. No evaluation set may have this name."""


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


def forgotten_evaluation(settings: Settings) -> Iterator[Objection]:
    """Object if there are evaluation sets and nobody gave ``eval_interval``.

    It is not one of the rules because older versions began such runs, and these may be continued.
    """
    if (sets := _unused_sets(settings)) and "eval_interval" not in settings.model_fields_set:
        yield Objection(
            f"{sets} would never be evaluated, because eval_interval is not given",
            "set eval_interval to a number of steps, or remove the [[eval]] table (--eval_interval null keeps it"
            " unused)",
            frozenset(each.name for each in settings.eval),
        )


def evaluation_left_out(settings: Settings) -> Iterator[str]:
    """Yield a note if there are evaluation sets and ``eval_interval`` was set to null."""
    if (sets := _unused_sets(settings)) and "eval_interval" in settings.model_fields_set:
        yield f"{sets} will not be evaluated: eval_interval is null"


def _unused_sets(settings: Settings) -> str:
    names = ", ".join(f"'{each.name}'" for each in settings.eval)
    if not names or settings.eval_interval is not None:
        return ""
    return f"evaluation {'set' if len(settings.eval) == 1 else 'sets'} {names}"


def _learning(settings: Settings) -> Iterator[str]:
    algorithm = settings.algorithm
    name = algorithm.advantage_estimator
    if settings.schedule.preset == ROLLOUT_ONLY:
        return
    if settings.rollout.temperature == 0:
        yield "rollout.temperature is 0: greedy responses of a prompt are all the same and teach nothing"
    if settings.rollout.n_samples_per_prompt == 1 and ESTIMATORS[name].compares_siblings:
        yield f"rollout.n_samples_per_prompt is 1: {name} compares the responses of a group, so it needs at least 2"
    if algorithm.dynamic_sampling and not ESTIMATORS[name].compares_siblings:
        yield f"algorithm.dynamic_sampling filters groups of equal scores, but {name} learns from those too"
    if algorithm.dynamic_sampling and settings.rollout.n_samples_per_prompt == 1:
        yield "algorithm.dynamic_sampling with one response per prompt would filter every group"
    correction = algorithm.importance_sampling.type
    if CORRECTIONS[correction].is_active and algorithm.old_logprobs == "behaviour":
        yield (
            f"algorithm.importance_sampling.type is '{correction}' but algorithm.old_logprobs is 'behaviour', whose"
            " ratio already corrects for the rollout's log-probs; set old_logprobs to 'recompute'"
        )
    bounds = algorithm.importance_sampling.clip
    if bounds.low >= bounds.high:
        yield f"algorithm.importance_sampling.clip_low ({bounds.low}) must be below clip_high ({bounds.high})"
    buffer, longest = algorithm.overlong.buffer_length, settings.rollout.max_response_length
    if buffer > longest:
        yield f"algorithm.overlong.buffer_length ({buffer}) is longer than rollout.max_response_length ({longest})"


def _streaming(settings: Settings) -> Iterator[str]:
    """A step in pieces must be the step on the whole batch, and a deterministic run the same in every repetition."""
    asked = settings.schedule
    if asked.lend_at != type(asked).model_fields["lend_at"].default and asked.resolved().lending is not Scaling.FIXED:
        yield f"schedule.lend_at is {asked.lend_at} but schedule.lending is not 'fixed'; set it, or leave lend_at out"
    if run_preset(settings).stream is Stream.NEVER:
        if asked.stream_share is not None:
            yield "schedule.stream_share is given but nothing is streamed; set schedule.stream, or leave it out"
        return
    name = settings.algorithm.advantage_estimator
    if ESTIMATORS[name].whitens_batch:
        yield (
            f"schedule.stream trains a batch in pieces, but {name} whitens advantages over the whole batch; set"
            " schedule.stream to never, or use another advantage_estimator"
        )
    if settings.rollout.deterministic:
        yield (
            "schedule.stream: which groups are trained together depends on when they arrive, so rollout.deterministic"
            " cannot repeat the sums; set schedule.stream to never"
        )


def _clipping(settings: Settings) -> Iterator[str]:
    algorithm = settings.algorithm
    loss = LOSSES[algorithm.loss]
    given = [key for key in ("clip_ratio_low", "clip_ratio_high") if getattr(algorithm, key) is not None]
    if loss.clip is None and given:
        yield f"algorithm.{given[0]} is given but the loss '{algorithm.loss}' has no clip; leave it out"
    if loss.clip is not None and algorithm.clip.low > 1:
        yield f"algorithm.clip_ratio_low is {algorithm.clip.low}: a ratio is never below 0, so 1 is the largest"
    if algorithm.clip_ratio_c is None:
        return
    if not loss.has_dual_clip:
        yield f"algorithm.clip_ratio_c is given but the loss '{algorithm.loss}' has no dual clip; leave it out"
    elif algorithm.clip_ratio_c <= 1 + algorithm.clip.high:
        yield (
            f"algorithm.clip_ratio_c ({algorithm.clip_ratio_c}) must be above 1 + clip_ratio_high"
            f" ({1 + algorithm.clip.high})"
        )


def _engine(settings: Settings) -> Iterator[str]:
    rollout = settings.rollout
    longest = settings.data.max_prompt_length + rollout.max_response_length
    if rollout.kv_tokens is not None and rollout.kv_tokens < longest:
        yield f"rollout.kv_tokens ({rollout.kv_tokens}) cannot hold one longest response ({longest} tokens with prompt)"
    if rollout.engine == "timed" and rollout.costs == CostSettings():
        yield "rollout.engine is 'timed', which takes as long as rollout.costs says: give rollout.costs"
    if rollout.deterministic and settings.model.dtype != "float32":
        yield f"rollout.deterministic needs model.dtype 'float32', got '{settings.model.dtype}'"
    if rollout.deterministic and settings.schedule.over_provision_trials:
        yield "schedule.over_provision_trials are judged by the clock, so rollout.deterministic cannot repeat them"
    longest_eval = max((s.max_response_length or 0 for s in settings.eval), default=0)
    if longest_eval > rollout.max_response_length:
        yield (
            f"an evaluation set allows {longest_eval} tokens, more than rollout.max_response_length"
            f" ({rollout.max_response_length}), which sizes the engine"
        )


def _halves(settings: Settings) -> Iterator[str]:
    is_rollout_only = settings.schedule.preset == ROLLOUT_ONLY
    if is_rollout_only and settings.eval_interval:
        yield "eval_interval is given but a run that does not train has nothing to evaluate; set it to null"
    if settings.schedule.num_prompts is not None and not is_rollout_only:
        yield "schedule.num_prompts is read by `tailrace rollout` only; for training set schedule.max_steps"


def _weights(settings: Settings) -> Iterator[str]:
    trainer = settings.trainer
    if trainer.num_ranks % trainer.num_replicas:
        yield (
            f"trainer.num_ranks ({trainer.num_ranks}) must be a multiple of trainer.num_replicas"
            f" ({trainer.num_replicas})"
        )
    elif trainer.num_ranks % (trainer.num_replicas * trainer.tensor_parallel_size):
        yield (
            f"trainer.num_ranks ({trainer.num_ranks}) must be a multiple of trainer.num_replicas"
            f" ({trainer.num_replicas}) times trainer.tensor_parallel_size ({trainer.tensor_parallel_size})"
        )
    if trainer.tensor_parallel_size > 1 and settings.model.lora_rank:
        yield "model.lora_rank and trainer.tensor_parallel_size above 1 do not work together; leave one of them out"
    if trainer.tensor_parallel_size > 1 and trainer.torch_compile:
        yield "trainer.torch_compile does not work with trainer.tensor_parallel_size above 1; leave one of them out"
    if settings.trainer.weight_channel == "cuda-ipc" and settings.model.device == "cpu":
        yield "trainer.weight_channel is 'cuda-ipc', which needs a GPU, but model.device is 'cpu'"
    if settings.trainer.weight_channel == "ray" and settings.runtime != "ray":
        yield "trainer.weight_channel is 'ray', which needs runtime 'ray'"


def _memory(settings: Settings) -> Iterator[str]:
    trainer = settings.trainer
    if trainer.gradients_device is not None and trainer.reduce_gradients == "last" and trainer.num_ranks > 1:
        yield (
            "trainer.reduce_gradients 'last' keeps a whole gradient on the device of every rank until the optimizer"
            " step, so gradients cannot wait on the host; leave out reduce_gradients or trainer.gradients_device"
        )
    if trainer.reference_device is None:
        return
    if not settings.algorithm.kl_loss_coef:
        yield (
            "trainer.reference_device is given but algorithm.kl_loss_coef is 0, so there is no reference model; leave"
            " it out"
        )
    elif settings.model.lora_rank:
        yield (
            "trainer.reference_device is given with model.lora_rank: the reference is the trained model without its"
            " adapter, and there is no copy of it; leave it out"
        )


def _ray(settings: Settings) -> Iterator[str]:
    ray = settings.ray
    if ray.checkpoints == "gathered" and settings.trainer.num_ranks > 1 and "training" not in ray.one_node:
        yield "ray.checkpoints is 'gathered', which needs all ranks on one node: add 'training' to ray.one_node"


def _rewards(settings: Settings) -> Iterator[str]:
    own = {"code_tests": "reward.code_tests.timeout_s", "judge": "reward.judge.timeout_s"}
    for entry in settings.reward.functions or ():
        if entry.timeout_s is not None and entry.function in own:
            yield f"timeout_s of '{entry.function}' in reward.functions has no effect: set {own[entry.function]}"


_RULES: tuple[Callable[[Settings], Iterator[str]], ...] = (
    _evaluation,
    _learning,
    _streaming,
    _clipping,
    _engine,
    _halves,
    _weights,
    _memory,
    _ray,
    _rewards,
    judge_rules,
    parallel_rules,
)
