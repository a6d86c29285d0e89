"""What workers are told first: everything that they must know to start."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from tailrace.config.memory_release import leaves_between_pieces, releases_memory
from tailrace.config.parallel_layouts import rollout_of
from tailrace.config.settings import Settings
from tailrace.core.schedule import Layout
from tailrace.engines.registry import engine_name, with_chosen_engine
from tailrace.runtime.gpus.found_devices import seen_by_worker
from tailrace.runtime.inputs.sources import Sources
from tailrace.workers.judge_messages import JudgeInit, UrlJudgeInit
from tailrace.workers.messages import POLICY, ModelInit, RolloutInit, TrainingInit


def rollout_init(settings: Settings, sources: Sources) -> RolloutInit:
    rollout = with_chosen_engine(settings, sources.model)
    return RolloutInit(
        checkpoint=sources.model,
        model=seen_by_worker(settings.model),
        rollout=rollout,
        max_length=sources.engine_length(settings, engine_name(rollout)),
        seed=settings.seed,
        may_release=releases_memory(settings) or sources.schedule.parallelism.parks,
    )


def init_of_size(init: RolloutInit, layout: Layout) -> RolloutInit:
    """The first message to an instance of a layout. ``init``: that to instances of a run with one parallel size."""
    return replace(init, rollout=rollout_of(init.rollout, layout))


def training_init(
    settings: Settings, sources: Sources, *, checkpoint: Path | None, channel: str, run: Path
) -> TrainingInit:
    """``checkpoint``: where training goes on; None: at the model itself. ``channel``: how weights are published.
    ``run``: the run directory, after which the channel is named."""
    policy = ModelInit(
        name=POLICY,
        model_path=sources.model,
        checkpoint=checkpoint,
        model=seen_by_worker(settings.model),
        trainer=settings.trainer.model_copy(update={"weight_channel": channel}),
        algorithm=settings.algorithm,
        temperature=settings.rollout.temperature,
        max_response_length=settings.rollout.max_response_length,
        max_steps=sources.schedule.max_steps,
        seed=settings.seed,
        channel_name=hashlib.sha256(str(run).encode()).hexdigest()[:16],
        is_colocated=settings.schedule.placement == "colocated",
        leaves_between_pieces=leaves_between_pieces(settings),
    )
    return TrainingInit(
        models=(policy,),
        num_shards=settings.trainer.num_shards,
        num_replicas=settings.trainer.num_replicas,
        tensor_parallel_size=settings.trainer.tensor_parallel_size,
    )


def judge_init(settings: Settings, sources: Sources) -> JudgeInit | UrlJudgeInit:
    judge, source = settings.reward.judge, sources.judge
    assert source is not None, "no prompt asks for a judge"
    if source.model is not None:
        return JudgeInit(
            model_path=source.model,
            template=source.template,
            answers=source.answers,
            device=seen_by_worker(settings.model).device,
            dtype=judge.dtype or settings.model.dtype,
            budget_bytes=source.budget_bytes,
            profile=source.profile,
            is_packed=not judge.deterministic,
            max_tokens=judge.max_pass_tokens,
            threads=judge.threads or 1,
            detokenizer=sources.detokenizer,
        )
    assert judge.url is not None
    assert judge.model is not None
    return UrlJudgeInit(
        url=judge.url,
        model=judge.model,
        template=source.template,
        answers=source.answers,
        writes=judge.reading == "text",
        max_reply_length=judge.max_reply_length,
        max_requests=judge.max_requests,
        timeout_s=judge.timeout_s,
        key_variable=judge.api_key_variable,
        detokenizer=sources.detokenizer,
    )
