"""A dry run: everything that is checked before a run starts, and the memory that it will take. Nothing is written.

A dry run for a stated card (``--card``) plans a run for another machine: it needs neither a GPU nor the model's files
nor the data, and does not check them.
"""

from __future__ import annotations

import os

from tailrace.config.load import SettingsError
from tailrace.config.presets import ROLLOUT_ONLY
from tailrace.config.settings import Settings
from tailrace.core.schedule import Schedule
from tailrace.engines.registry import decoding_line, with_chosen_engine
from tailrace.runtime.channel_choice import chosen_channel
from tailrace.runtime.device_plan import demand_of
from tailrace.runtime.memory import card_defaults, planned
from tailrace.runtime.memory.card import Card, find_card
from tailrace.runtime.memory.parts import ProcessMemory
from tailrace.runtime.memory.plan import MemoryPlan, plan
from tailrace.runtime.place import local_plan
from tailrace.runtime.run_directory import RunDirectory
from tailrace.runtime.train_command import Say, prepare
from tailrace.store.model_shape import ModelShape

_GIB = 2**30


def dry_run(settings: Settings, say: Say) -> Settings:
    """Check the run and say what it will do. Return its settings, with the numbers that depend on the card.

    ``SettingsError`` if it could not start, or if its memory is not enough.
    """
    if settings.schedule.preset == ROLLOUT_ONLY:
        raise SettingsError(f"schedule.preset '{ROLLOUT_ONLY}' does not train: use `tailrace rollout`")
    card = find_card(settings)
    directory = RunDirectory.open(settings)
    try:
        settings, _ = card_defaults.resolve(settings, directory.stored_settings(), find=lambda given: card)
    finally:
        directory.close()
    sources = prepare(settings)
    for line in (*sources.notes, *_plan_lines(settings, sources.schedule, card), *_device_lines(settings)):
        say(line)
    try:
        shape = ModelShape.read(sources.model)
    except ValueError as error:
        say(f"memory: not computed ({error})")
    else:
        rollout = with_chosen_engine(settings, sources.model)
        if card is not None and (note := decoding_line(rollout, shape.head_dim)):
            say(note)
        _say_memory(settings, shape, card, say)
    return settings


def dry_run_on(card: Card, settings: Settings, say: Say) -> Settings:
    """Plan the run for this card. Return its settings, with the numbers that depend on the card.

    ``SettingsError`` if the settings do not work together, or if the card's memory is not enough.
    """
    try:
        shape = planned.shape_of(settings.model.path)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    planned.check(settings, shape, card)
    settings, _ = card_defaults.resolve(settings, find=lambda given: card, shape=shape)
    for line in (*_plan_lines(settings, planned.schedule(settings), card), *planned.lines(settings, shape, card)):
        say(line)
    if note := decoding_line(settings.rollout, shape.head_dim):
        say(note)
    _say_memory(settings, shape, card, say)
    return settings


def _plan_lines(settings: Settings, schedule: Schedule, card: Card | None) -> list[str]:
    rollout = settings.rollout
    return [
        f"device: {'CPU' if card is None else card.title}, {settings.model.dtype}",
        f"schedule: {settings.schedule.preset}, {schedule.max_steps} steps of {schedule.batch_size} prompts x"
        f" {schedule.group_size} responses; a round starts {schedule.launch_prompts} x {schedule.launch_responses}",
        f"rollout instances: {rollout.num_instances}, at most {rollout.running_limit} responses at a time in each,"
        f" at most {settings.data.max_prompt_length} + {rollout.max_response_length} tokens of prompt and response",
        f"training: micro-batches of at most {settings.trainer.token_limit:,} tokens"
        + (", activations recomputed" if settings.trainer.gradient_checkpointing else ""),
    ]


def _device_lines(settings: Settings) -> list[str]:
    """Which device does what. On Ray that depends on the cluster, so there it is what the cluster must have."""
    if settings.runtime == "ray":
        demand = demand_of(settings, trains=True)
        return [f"a cluster with GPUs must have at least {demand.least} of them, for {demand.sentence()}"]
    devices = local_plan(settings, trains=True)
    return [devices.line(), *chosen_channel(settings, devices).lines]


def _say_memory(settings: Settings, shape: ModelShape, card: Card | None, say: Say) -> None:
    memory = plan(shape, settings, is_cuda=card is not None, num_devices=1 if card is None else card.count)
    for line in table(memory):
        say(line)
    say(_verdict(memory, card))
    has = _main_memory() if card is None else card.available
    if has is not None and memory.num_bytes > has:
        raise SettingsError(
            f"the run needs about {memory.num_bytes / _GIB:.1f} GiB, and {has / _GIB:.1f} GiB are available; lower"
            " rollout.kv_tokens or trainer.max_tokens_per_gpu, or set trainer.gradient_checkpointing"
        )


def table(memory: MemoryPlan) -> list[str]:
    """The plan as lines: part, GiB, how it is computed."""
    return [line for process in memory.tables for line in _process_lines(process)]


def _process_lines(process: ProcessMemory) -> list[str]:
    rows = [f"  {part.name:<20}{part.num_bytes / _GIB:>9.2f}  {part.how}" for part in process.parts]
    times = f" x {process.count}" if process.count > 1 else ""
    return [f"{process.name + times:<22}{'GiB':>9}", *rows, f"  {'together':<20}{process.num_bytes / _GIB:>9.2f}"]


def _verdict(memory: MemoryPlan, card: Card | None) -> str:
    kind = "at most, because rollout and training take turns" if memory.is_colocated else "in all"
    if memory.is_apart:
        kind = "on the fullest GPU"
    where = "" if card is None or card.count == 1 or memory.is_apart else "on each GPU, "
    needed = f"memory: {where}about {memory.num_bytes / _GIB:.1f} GiB {kind}"
    if card is not None:
        available = "" if card.available == card.total else f", {card.available / _GIB:.0f} GiB of it available"
        return f"{needed}, of {card.total / _GIB:.1f} GiB ({card.name}){available}"
    has = _main_memory()
    return f"{needed}, on the CPU" + ("" if has is None else f"; this machine has {has / _GIB:.1f} GiB")


def _main_memory() -> int | None:
    """Bytes of main memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
