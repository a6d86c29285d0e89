"""Everything a run reads before it starts: the model's files, its tokenizer, the prompts of every source."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from tailrace.config import schedule_builder
from tailrace.config.load import SettingsError
from tailrace.config.rules import TRAIN_SOURCE
from tailrace.config.run_preset import left_out_lines
from tailrace.config.settings import EvalSetSettings, Settings
from tailrace.core.ids import GroupId
from tailrace.core.schedule import Schedule
from tailrace.data.detokenizer import Detokenizer
from tailrace.data.models import resolve_model
from tailrace.data.order import SourceOrder
from tailrace.data.prompts import PromptSet
from tailrace.data.tokenizer import detokenizer, load_tokenizer
from tailrace.data.training import TrainingPrompts
from tailrace.engines.registry import check_engine, choose_engine
from tailrace.observe.journal.run_files import RunFiles
from tailrace.observe.prompts import length_trace
from tailrace.observe.prompts.length_trace import LengthTrace
from tailrace.rewards.assignment import RewardAssignment
from tailrace.runtime.inputs.catalogue import Catalogue, Source
from tailrace.runtime.inputs.judge_source import JudgeSource, unused_judge
from tailrace.runtime.inputs.lengths import SourceLength, longest, source_lengths
from tailrace.runtime.inputs.sampling import end_tokens, sampling
from tailrace.runtime.record.run_directory import REWARD_FILE
from tailrace.store.model_config import read_model_config
from tailrace.store.payload_store import PayloadStore
from tailrace.store.positions import Positions, positions_of
from tailrace.store.tensor_file import weights_damage
from tailrace.trainer.ranks import tensor_rules

_PROMPTS_MEASURED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    model: Path
    contents: Mapping[str, Source]
    decode: Callable[..., str]
    detokenizer: Detokenizer | None
    """Makes the same texts as ``decode`` in other processes; None where only ``decode`` can make them."""
    rewards: RewardAssignment
    judge: JudgeSource | None
    """The model that scores responses; None: no prompt asks for it."""
    schedule: Schedule
    notes: tuple[str, ...]
    """Lines about the sources and rewards, to be printed at the start."""
    fingerprints: dict[str, str]
    """Hashes of the model, of the judge, of the prompts of each source and of the files of reward functions. A run is
    continued only with the same ones, or, if that is asked for, with edited reward functions."""
    lengths: tuple[SourceLength, ...]
    """Lengths of the prompts and responses of each source that is used."""
    positions: Positions | None
    """Positions of the model; None: it has no limit."""

    @classmethod
    def load(cls, settings: Settings) -> Self:
        """Read everything; ``SettingsError`` if something is wrong. Nothing is written."""
        try:
            check_device(settings.model.device)
            model = resolve_model(settings.model.path)
            check_model(settings, model)
            tokenizer = load_tokenizer(model)
            loader = _Loader(settings, tokenizer, end_tokens(model, tokenizer.eos_token_id))
            sources = {TRAIN_SOURCE: loader.train()} | {s.name: loader.evaluation(s) for s in settings.eval}
            rewards = RewardAssignment.make(settings, [source.prompts for source in sources.values()])
            judge = JudgeSource.load(settings, rewards)
            fingerprints = _fingerprints(model, sources) | _reward_files(rewards)
            fingerprints |= dict(judge.fingerprints() if judge else ())
            if settings.rollout.from_run is not None:
                _check_saved_prompts(settings.rollout.from_run, fingerprints)
        except (OSError, ValueError) as error:
            raise SettingsError(str(error)) from error
        return cls(
            model=model,
            contents=sources,
            decode=tokenizer.decode,
            detokenizer=detokenizer(tokenizer),
            rewards=rewards,
            judge=judge,
            schedule=_schedule(settings, sources, rewards),
            notes=(
                *_engine_notes(settings, model),
                *left_out_lines(settings, rewards.parts),
                *(line for name, source in sources.items() for line in _notes(name, source.prompts)),
                rewards.note,
                *((judge.note(settings.reward.judge),) if judge else unused_judge(settings, judge)),
            ),
            fingerprints=fingerprints,
            lengths=source_lengths(settings, {name: source.prompts.longest for name, source in sources.items()}),
            positions=positions_of(read_model_config(model)),
        )

    def check_schedule(self, settings: Settings) -> None:
        """Raise ``SettingsError`` if the schedule of these settings does not work with the same prompts."""
        _schedule(settings, self.contents, self.rewards)

    def prompt_length(self, group: GroupId) -> int:
        return len(self.contents[group.source].prompts[group.prompt].tokens)

    def engine_length(self, settings: Settings, engine: str) -> int:
        """Most tokens of a prompt with its response that the engine makes room for."""
        asked = settings.data.max_prompt_length + settings.rollout.max_response_length
        if engine != "vllm" or self.positions is None:
            return asked
        # vLLM does not start with room for more than the model's positions, whether it is used or not.
        return min(asked, max(self.positions.count, longest(self.lengths)))

    def catalogue(self, store: PayloadStore) -> Catalogue:
        return Catalogue(self.contents, store, self.decode, self.rewards)


def _schedule(settings: Settings, sources: Mapping[str, Source], rewards: RewardAssignment) -> Schedule:
    counts = {name: len(source.prompts) for name, source in sources.items()}
    usual = _usual_length(sources[TRAIN_SOURCE].prompts)
    return schedule_builder.schedule(settings, counts, prompt_length=usual, score_parts=rewards.parts)


class _Loader:
    def __init__(self, settings: Settings, tokenizer: Any, end_tokens: tuple[int, ...]) -> None:
        self._settings, self._tokenizer, self._end_tokens = settings, tokenizer, end_tokens

    def train(self) -> Source:
        settings = self._settings
        training = TrainingPrompts.load(TRAIN_SOURCE, settings.data, self._tokenizer, seed=settings.seed)
        return Source(
            prompts=training.prompts,
            order=training.order,
            sampling=sampling(settings.rollout, self._end_tokens),
            budget=settings.rollout.max_response_length,
            forced_lengths=_forced_lengths(settings.rollout.forced_lengths),
        )

    def evaluation(self, eval_set: EvalSetSettings) -> Source:
        settings, name = self._settings, eval_set.name
        prompts = PromptSet.load(
            name,
            eval_set.path,
            self._tokenizer,
            settings.data,
            max_prompts=eval_set.max_prompts,
            prompt_column=eval_set.prompt_column,
            answer_column=eval_set.answer_column,
            rewards=eval_set.reward,
        )
        return Source(
            prompts=prompts,
            order=SourceOrder(prompts.indices, source=name, seed=settings.seed, shuffle=False),
            sampling=sampling(eval_set, self._end_tokens),
            budget=eval_set.max_response_length or settings.rollout.max_response_length,
        )


def _forced_lengths(path: Path | None) -> LengthTrace | None:
    if path is None:
        return None
    try:
        return length_trace.read(path)
    except ValueError as error:
        raise ValueError(f"rollout.forced_lengths: {error}") from error


def _usual_length(prompts: PromptSet) -> int:
    """Mean length of the first prompts, in tokens."""
    return round(fmean(len(prompts[index].tokens) for index in prompts.indices[:_PROMPTS_MEASURED]))


def check_model(settings: Settings, model: Path) -> None:
    """``ValueError`` if the model's files are damaged, or if engine or adapter cannot use them. No weight is read."""
    config = read_model_config(model)
    if problem := weights_damage(model):
        raise ValueError(f"the weights of model {settings.model.path!r} cannot be used: {problem}; fetch them again")
    check_engine(settings, model)
    tensor_rules.check_ranks(config, settings.trainer.num_ranks)
    tensor_rules.check(config, settings.trainer.tensor_parallel_size)
    if settings.model.lora_rank or settings.trainer.reference_device is not None:
        from tailrace.trainer.model import lora, reference  # need torch, which other controllers do without

        lora.check(settings.model, model)
        reference.check(settings, model)


def _engine_notes(settings: Settings, model: Path) -> tuple[str, ...]:
    choice = choose_engine(settings, model)
    return () if choice.reason is None else (f"rollout engine: {choice.engine} ({choice.reason})",)


def _notes(name: str, prompts: PromptSet) -> tuple[str, ...]:
    left_out = f", {prompts.num_filtered} dropped as too long" if prompts.num_filtered else ""
    return (f"{name}: {len(prompts)} prompts from {prompts.path}{left_out}", *prompts.notes)


def _fingerprints(model: Path, sources: Mapping[str, Source]) -> dict[str, str]:
    prompts = {_prompts_of(name): source.prompts.fingerprint() for name, source in sources.items()}
    return {"model": _model_fingerprint(model)} | prompts


def _reward_files(rewards: RewardAssignment) -> dict[str, str]:
    """Hashes of the files that reward functions are in. Modules that are found by name are not covered."""
    files = {use.function: Path(use.function.rpartition(":")[0]) for use in rewards.uses}
    return {
        f"{REWARD_FILE} '{function}'": hashlib.sha256(path.read_bytes()).hexdigest()
        for function, path in files.items()
        if path.suffix == ".py" and path.is_file()
    }


def _prompts_of(source: str) -> str:
    return f"prompts of '{source}'"


def _check_saved_prompts(run: Path, fingerprints: Mapping[str, str]) -> None:
    """Refuse a saved run with other prompts: its responses are found by prompt index, so they would not fit."""
    name = _prompts_of(TRAIN_SOURCE)
    if RunFiles.find(run).fingerprints().get(name) != fingerprints[name]:
        raise ValueError(f"rollout.from_run: the responses in {run} are to other prompts than this run's")


def _model_fingerprint(model: Path) -> str:
    """A hash of the configuration and of the file sizes. Hashing all weights would take as long as loading them."""
    sizes = {path.name: path.stat().st_size for path in sorted(model.glob("*.safetensors"))}
    return hashlib.sha256(f"{(model / 'config.json').read_text()}{sizes}".encode()).hexdigest()


def check_device(name: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    if name in ("auto", "cpu"):
        return
    # Imported for a named device only: the controller itself computes nothing, and torch takes seconds to import.
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"model.device: {name!r} is not a device; write auto, cpu or cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"model.device is {name!r}, but torch finds no CUDA device here; set it to cpu")
