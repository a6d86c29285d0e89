"""What can be said about a run on a machine that is not there: no GPU, no files of the model, no data."""

from __future__ import annotations

from pathlib import Path

from tailrace.config import schedule_builder
from tailrace.config.load import SettingsError
from tailrace.config.presets import ROLLOUT_ONLY
from tailrace.config.rules import TRAIN_SOURCE
from tailrace.config.run_preset import with_rewards
from tailrace.config.settings import Settings
from tailrace.core.schedule import Schedule
from tailrace.data.models import resolve_model
from tailrace.engines.registry import ENGINES, division_refusal, engine_name, refusals
from tailrace.sizing.card import Card
from tailrace.sizing.channel_choice import refused_channel
from tailrace.sizing.device_plan import (
    DevicePlan,
    TooFewDevices,
    demand_of,
    plan_devices,
    refused_on_ray,
)
from tailrace.sizing.judge_memory import JudgeLoad
from tailrace.sizing.known_shapes import known_names, known_shape
from tailrace.sizing.memory_plan import gpus_per_host, plan
from tailrace.sizing.model_shape import ModelShape
from tailrace.sizing.parking import parking
from tailrace.sizing.shared_places import nothing_lent

_GPU = "cuda"


def shape_of(name: str) -> ModelShape:
    """Sizes of a model: known by its name, or read from files that are here. Nothing is downloaded."""
    if (shape := known_shape(name)) is not None:
        return shape
    if "/" in name and not Path(name).is_dir() and not name.startswith((".", "/", "~")):
        raise ValueError(
            f"the sizes of model {name!r} are not known: give the directory of its config.json, or one of"
            f" {', '.join(known_names())}"
        )
    return ModelShape.read(resolve_model(name))


def on_a_gpu(settings: Settings) -> Settings:
    """The settings as they are read on the machine that has the card: ``model.device`` "auto" is a GPU there."""
    if settings.model.device != "auto":
        return settings
    return with_rewards(settings.model_copy(update={"model": settings.model.model_copy(update={"device": _GPU})}))


def schedule(settings: Settings) -> Schedule:
    """The schedule, as if there were prompts enough; ``SettingsError`` if it does not work."""
    asked = settings.schedule
    counts = {TRAIN_SOURCE: asked.rollout_batch_size * (asked.max_steps or 1)}
    counts |= {each.name: each.max_prompts or 1 for each in settings.eval}
    return schedule_builder.schedule(settings, counts, prompt_length=settings.data.max_prompt_length)


def check(settings: Settings, shape: ModelShape, card: Card) -> None:
    """``SettingsError`` if the settings ask for what the engine or this many cards cannot do."""
    if settings.schedule.preset == ROLLOUT_ONLY:
        raise SettingsError(f"schedule.preset '{ROLLOUT_ONLY}' does not train: use `tailrace rollout`")
    if settings.model.device == "cpu":
        raise SettingsError("--card plans for a GPU, but model.device is 'cpu'")
    engine = engine_name(settings.rollout)
    # `auto` takes vLLM if the native engine cannot do what is asked, so nothing is refused that vLLM can do.
    for sentence in refusals(settings, ENGINES["vllm" if engine == "auto" else engine].capabilities_on(_GPU)):
        raise SettingsError(sentence)
    try:
        devices = _devices(settings, card)
    except TooFewDevices as error:
        raise SettingsError(f"{error}: --card {card.count}x{card.name}") from error
    if (problem := _refusal(settings, shape, devices)) is not None:
        raise SettingsError(problem)


def _refusal(settings: Settings, shape: ModelShape, devices: DevicePlan) -> str | None:
    """Why a run with these devices would not start; None if it would."""
    sizes = {"num_attention_heads": shape.num_heads, "num_key_value_heads": shape.num_kv_heads}
    if not shape.num_experts:
        sizes["intermediate_size"] = shape.intermediate_size
    if (sentence := division_refusal(settings, sizes)) is not None:
        return sentence
    if settings.runtime == "ray" and (sentence := refused_on_ray(demand_of(settings, trains=True), devices)):
        return sentence
    return refused_channel(settings, devices)


def lines(settings: Settings, shape: ModelShape, card: Card, judge: JudgeLoad | None = None) -> list[str]:
    """Which GPU does what, what the host must hold, and what is not checked."""
    hosts = plan(shape, settings, is_cuda=True, num_devices=card.count, judge=judge).hosts
    most, per_host = max(host.num_bytes for host in hosts), gpus_per_host(settings)
    where = "" if per_host is None else f" on the fullest, if each has {per_host} GPUs"
    devices = _devices(settings, card)
    found = [
        devices.line(),
        *filter(None, [nothing_lent(settings, devices)]),
        f"memory of the host: about {most / 2**30:.0f} GiB{where}",
    ]
    waiting = parking(settings, can_release=_can_release(settings), needed=most, has=None).line
    found += [] if waiting is None else [waiting]
    if settings.runtime == "ray" and per_host is None:
        channel = settings.trainer.weight_channel
        found.append(f"trainer.weight_channel '{channel}' works only if all {card.count} GPUs are in one machine")
    return [*found, "not checked, because this is a plan: the model's files, its tokenizer, the data, the packages"]


def _can_release(settings: Settings) -> bool:
    engine = engine_name(settings.rollout)
    return ENGINES["vllm" if engine == "auto" else engine].capabilities_on(_GPU).releases_memory


def _devices(settings: Settings, card: Card) -> DevicePlan:
    """The device plan, with GPUs numbered from 0 over all machines."""
    return plan_devices(demand_of(settings, trains=True), [str(number) for number in range(card.count)])
