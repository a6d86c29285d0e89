"""A dry run: everything that can be checked before a run starts, and the memory that it will take. Nothing is written.

The plan comes first: what the run does, where, with how much memory. Then what was tried: lengths against positions,
one prompt as the model sees it, the reward functions, and what the command would do in its run directory.

A dry run for a stated card (``--card``) plans a run for another machine: it needs neither a GPU nor the model's files
nor the data, and does not check them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from tailrace.commands.preflight import planned
from tailrace.commands.preflight.existing_run import difference_lines, directory_lines, holds_run
from tailrace.commands.preflight.judge_trial import judge_lines
from tailrace.commands.preflight.prompt_view import prompt_lines
from tailrace.commands.preflight.reward_trial import trial_line, try_rewards
from tailrace.commands.train import Say, prepare_in
from tailrace.config.load import SettingsError
from tailrace.config.presets import ROLLOUT_ONLY
from tailrace.config.rules import TRAIN_SOURCE, evaluation_left_out, forgotten_evaluation
from tailrace.config.run_preset import left_out_lines
from tailrace.config.settings import Settings
from tailrace.core.schedule import Schedule
from tailrace.data.models import resolve_model
from tailrace.engines.registry import decoding_line, with_chosen_engine
from tailrace.rewards.assignment import expected_parts
from tailrace.runtime.gpus import card_defaults
from tailrace.runtime.gpus.found_cards import find_card
from tailrace.runtime.gpus.found_judge import find_judge
from tailrace.runtime.inputs.lengths import length_lines, refused_lengths, source_lengths
from tailrace.runtime.inputs.sources import Sources
from tailrace.runtime.open_place import local_plan
from tailrace.runtime.placed_schedule import parked
from tailrace.runtime.record.run_directory import RunDirectory
from tailrace.sizing.card import Card
from tailrace.sizing.channel_choice import chosen_channel
from tailrace.sizing.device_plan import demand_of, plan_devices
from tailrace.sizing.judge_memory import JudgeLoad
from tailrace.sizing.known_shapes import known_shape
from tailrace.sizing.memory_plan import MemoryPlan, plan
from tailrace.sizing.model_shape import ModelShape
from tailrace.sizing.parts import ProcessMemory
from tailrace.sizing.shared_places import nothing_lent
from tailrace.store.model_config import read_model_config
from tailrace.store.positions import Positions, positions_of

_GIB = 2**30


def dry_run(settings: Settings, say: Say) -> Settings:
    """Check the run and say what it will do. Return its settings, with the numbers that depend on the card.

    ``SettingsError`` if it could not start, or if its memory is not enough.
    """
    card = find_card(settings)
    directory = _open(settings, say)
    try:
        settings, _ = card_defaults.resolve(settings, directory.stored_settings(), find=lambda given: card)
        sources = prepare_in(directory, settings)
        directory.check_sources(settings, sources.fingerprints)
        for line in (*_plan_lines(settings, sources.schedule, card), *_device_lines(settings, sources)):
            say(line)
        say("")
        problems = [*_memory_problems(settings, sources, card, say)]
        for line in ("", *sources.notes, *length_lines(sources.lengths, sources.positions), *_prompt(sources)):
            say(line)
        problems += _reward_problems(settings, sources, say)
        for line in directory_lines(directory, settings, sources.schedule):
            say(line)
        what = "continue it" if holds_run(directory) else "start"
    finally:
        directory.close()
    if problems:
        raise SettingsError("\n".join(problems))
    say(f"nothing was written; to {what}, give the same command without --dry-run")
    return settings


def _open(settings: Settings, say: Say) -> RunDirectory:
    try:
        return RunDirectory.open(settings)
    except SettingsError:
        for line in difference_lines(settings):
            say(line)
        raise


def _prompt(sources: Sources) -> list[str]:
    """The first prompt of the run."""
    source = sources.contents[TRAIN_SOURCE]
    ((_, index),) = source.order.ids(0, 0, 1).prompts
    tokens = source.prompts[index].tokens
    text = sources.decode(tokens, skip_special_tokens=False)
    return prompt_lines(text, num_tokens=len(tokens), source=TRAIN_SOURCE, number=index)


def _reward_problems(settings: Settings, sources: Sources, say: Say) -> Iterator[str]:
    try:
        for line in judge_lines(settings, sources):
            say(line)
    except ValueError as error:
        if settings.runtime != "ray":
            yield str(error)
        else:
            say(f"note: on this machine, {error}; on the cluster the server is asked from where the judges are")
    try:
        trials = try_rewards(settings.reward, sources)
    except ValueError as error:
        if settings.runtime != "ray":
            yield str(error)
            return
        say(f"note: on this machine, {error}; on the cluster the functions are loaded where the reward processes are")
        return
    for trial in trials:
        say(trial_line(trial, on_failure=settings.reward.on_failure))


def dry_run_on(card: Card, settings: Settings, say: Say) -> Settings:
    """Plan the run for this card. Return its settings, with the numbers that depend on the card.

    ``SettingsError`` if the settings do not work together, or if the card's memory is not enough.
    """
    try:
        shape = planned.shape_of(settings.model.path)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    planned.check(settings, shape, card)
    settings = planned.on_a_gpu(settings)
    lengths, positions = source_lengths(settings), _known_positions(settings.model.path)
    if objections := [*forgotten_evaluation(settings), *refused_lengths(lengths, positions)]:
        raise SettingsError("\n".join(each.refusal for each in objections))
    try:
        judge = find_judge(settings, is_cuda=True, find=planned.shape_of)
    except (OSError, ValueError) as error:
        raise SettingsError(f"judge: {error}") from error
    settings, _ = card_defaults.resolve(settings, find=lambda given: card, shape=shape, judge=judge)
    lines = planned.lines(settings, shape, card, judge)
    for line in (*_plan_lines(settings, planned.schedule(settings), card), *lines):
        say(line)
    notes = (*left_out_lines(settings, expected_parts(settings)), *evaluation_left_out(settings))
    for line in (*notes, *(length_lines(lengths, positions) if positions else ())):
        say(line)
    if note := decoding_line(settings.rollout, shape.head_dim):
        say(note)
    for problem in _shape_problems(settings, shape, card, judge, say):
        raise SettingsError(problem)
    return settings


def _known_positions(model: str) -> Positions | None:
    """Positions of a model that is planned; None if there is no limit, or if its files are not needed for the plan."""
    return None if known_shape(model) else positions_of(read_model_config(resolve_model(model)))


def _plan_lines(settings: Settings, schedule: Schedule, card: Card | None) -> list[str]:
    rollout, trainer = settings.rollout, settings.trainer
    lines = [
        f"model: {settings.model.path}, {settings.model.dtype}, on {'the CPU' if card is None else card.title}",
        f"schedule: {settings.schedule.preset}, {_work(schedule)}",
        f"rollout instances: {rollout.num_instances}, at most {rollout.running_limit} responses at a time in each,"
        f" at most {settings.data.max_prompt_length} + {rollout.max_response_length} tokens of prompt and response",
    ]
    if schedule.trains:
        recomputes = ", activations recomputed" if trainer.gradient_checkpointing else ""
        lines.append(f"training: micro-batches of at most {trainer.token_limit:,} tokens{recomputes}")
    return lines


def _work(schedule: Schedule) -> str:
    if not schedule.trains:
        (only,) = schedule.eval_sets
        return f"{only.num_prompts:,} prompts x {only.group_size} responses, no training"
    return (
        f"{schedule.max_steps} steps of {schedule.batch_size} prompts x {schedule.group_size} responses;"
        f" each round starts {schedule.launch_prompts} prompts x {schedule.launch_responses} responses"
    )


def _device_lines(settings: Settings, sources: Sources) -> list[str]:
    """Which device does what. On Ray that depends on the cluster, so there it is what the cluster must have."""
    trains = _trains(settings)
    if settings.runtime == "ray":
        demand = demand_of(settings, trains=trains)
        lines = [f"a cluster with GPUs must have at least {demand.least} of them, for {demand.sentence()}"]
        devices = plan_devices(demand, ())
    else:
        devices = local_plan(settings, trains=trains)
        lines = [devices.line(), *filter(None, [nothing_lent(settings, devices)])]
        lines += chosen_channel(settings, devices).lines
    waiting = parked(settings, devices, model=sources.model).line
    return lines if waiting is None else [*lines, waiting]


def _trains(settings: Settings) -> bool:
    return settings.schedule.preset != ROLLOUT_ONLY


def _memory_problems(settings: Settings, sources: Sources, card: Card | None, say: Say) -> Iterator[str]:
    """Say what the run takes; yield a sentence if there is less."""
    try:
        shape = ModelShape.read(sources.model)
    except ValueError as error:
        say(f"memory: not computed ({error})")
        return
    rollout = with_chosen_engine(settings, sources.model)
    if card is not None and (note := decoding_line(rollout, shape.head_dim)):
        say(note)
    try:
        judge = find_judge(settings, is_cuda=card is not None)
    except (OSError, ValueError) as error:
        judge = None
        say(f"memory of the judge: not computed ({error})")
        if settings.reward.judge.profile is not None:
            yield str(error)
    yield from _shape_problems(settings, shape, card, judge, say)


def _shape_problems(
    settings: Settings, shape: ModelShape, card: Card | None, judge: JudgeLoad | None, say: Say
) -> Iterator[str]:
    num_devices = 1 if card is None else card.count
    memory = plan(shape, settings, is_cuda=card is not None, num_devices=num_devices, judge=judge)
    for line in table(memory):
        say(line)
    say(_verdict(memory, card))
    has = _main_memory() if card is None else card.available
    if has is not None and memory.num_bytes > has:
        yield (
            f"the run needs about {memory.num_bytes / _GIB:.1f} GiB, and {has / _GIB:.1f} GiB are available; lower"
            " rollout.kv_tokens or trainer.max_tokens_per_gpu, or set trainer.gradient_checkpointing"
            f"{_about_judge(memory)}"
        )
    if judge is not None and card is not None and (sentence := judge.refusal()) is not None:
        yield sentence


def _about_judge(memory: MemoryPlan) -> str:
    """What can be done about the judge, if the memory of the run is not enough."""
    if memory.judge is None:
        return ""
    least = "give the judge less (reward.judge.memory_gb)"
    return f"; or {least}" + ("" if memory.has_judge_apart else ", or a GPU of its own (reward.judge.placement)")


def table(memory: MemoryPlan) -> list[str]:
    """The plan as lines: part, GiB, how it is computed."""
    return [line for process in memory.tables for line in _process_lines(process)]


def _process_lines(process: ProcessMemory) -> list[str]:
    rows = [f"  {part.name:<20}{part.num_bytes / _GIB:>9.2f}  {part.how}" for part in process.parts]
    times = f" x {process.count}" if process.count > 1 else ""
    return [f"{process.name + times:<22}{'GiB':>9}", *rows, f"  {'together':<20}{process.num_bytes / _GIB:>9.2f}"]


def _verdict(memory: MemoryPlan, card: Card | None) -> str:
    kind = "at most, because rollout and training take turns" if memory.is_colocated else "in all"
    if memory.judge is not None and memory.is_colocated and memory.beside_rollout:
        kind = "at most, because rollout and training take turns beside the judge"
    if memory.is_apart or (memory.judge is not None and memory.has_judge_apart):
        kind = "on the fullest GPU"
    where = "" if card is None or card.count == 1 or kind == "on the fullest GPU" else "on each GPU, "
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
