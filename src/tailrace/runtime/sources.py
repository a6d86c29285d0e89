"""Everything a run reads before it starts: the model's files, its tokenizer, the prompts of every source."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from tailrace.config.load import SettingsError
from tailrace.config.rules import TRAIN_SOURCE
from tailrace.config.settings import EvalSetSettings, Settings
from tailrace.core.ids import GroupId
from tailrace.core.schedule import Schedule
from tailrace.data.models import resolve_model
from tailrace.data.order import PromptOrder
from tailrace.data.prompts import PromptSet
from tailrace.data.tokenizer import load_tokenizer
from tailrace.data.training import TrainingPrompts
from tailrace.engines.native.architecture import Architecture, read_architecture, weight_shapes
from tailrace.observe.run_files import RunFiles
from tailrace.rewards.plan import RewardPlan
from tailrace.runtime import plan
from tailrace.runtime.catalogue import Catalogue, Source
from tailrace.store.payload_store import PayloadStore
from tailrace.store.tensor_file import tensor_names, weights_damage

_PROMPTS_MEASURED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    model: Path
    contents: Mapping[str, Source]
    decode: Callable[..., str]
    rewards: RewardPlan
    schedule: Schedule
    notes: tuple[str, ...]
    """What a person should know about them."""
    fingerprints: dict[str, str]
    """Of the model and of each source's prompts: a run may only be continued with the same ones."""

    @classmethod
    def load(cls, settings: Settings) -> Self:
        """Read everything, or raise ``SettingsError`` with the reason. Nothing is written."""
        try:
            check_device(settings.model.device)
            model = resolve_model(settings.model.path)
            check_model(settings, model)
            tokenizer = load_tokenizer(model)
            loader = _Loader(settings, tokenizer, plan.end_tokens(model, tokenizer.eos_token_id))
            sources = {TRAIN_SOURCE: loader.train()} | {s.name: loader.evaluation(s) for s in settings.eval}
            rewards = RewardPlan.make(settings, [source.prompts for source in sources.values()])
            fingerprints = _fingerprints(model, sources)
            if settings.rollout.from_run is not None:
                _check_saved_prompts(settings.rollout.from_run, fingerprints)
        except (OSError, ValueError) as error:
            raise SettingsError(str(error)) from error
        return cls(
            model=model,
            contents=sources,
            decode=tokenizer.decode,
            rewards=rewards,
            schedule=_schedule(settings, sources),
            notes=(*(line for name, source in sources.items() for line in _notes(name, source.prompts)), rewards.note),
            fingerprints=fingerprints,
        )

    def check_schedule(self, settings: Settings) -> None:
        """``SettingsError`` if these settings have a schedule that does not work on the same prompts."""
        _schedule(settings, self.contents)

    def prompt_length(self, group: GroupId) -> int:
        return len(self.contents[group.source].prompts[group.prompt].tokens)

    def catalogue(self, store: PayloadStore) -> Catalogue:
        return Catalogue(self.contents, store, self.decode, self.rewards)


def _schedule(settings: Settings, sources: Mapping[str, Source]) -> Schedule:
    counts = {name: len(source.prompts) for name, source in sources.items()}
    return plan.schedule(settings, counts, prompt_length=_usual_length(sources[TRAIN_SOURCE].prompts))


class _Loader:
    def __init__(self, settings: Settings, tokenizer: Any, end_tokens: tuple[int, ...]) -> None:
        self._settings, self._tokenizer, self._end_tokens = settings, tokenizer, end_tokens

    def train(self) -> Source:
        settings = self._settings
        training = TrainingPrompts.load(TRAIN_SOURCE, settings.data, self._tokenizer, seed=settings.seed)
        return Source(
            prompts=training.prompts,
            order=training.order,
            sampling=plan.sampling(settings.rollout, self._end_tokens),
            budget=settings.rollout.max_response_length,
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
            order=PromptOrder(prompts.indices, source=name, seed=settings.seed, shuffle=False),
            sampling=plan.sampling(eval_set, self._end_tokens),
            budget=eval_set.max_response_length or settings.rollout.max_response_length,
        )


def _usual_length(prompts: PromptSet) -> int:
    """The mean of the first few, in tokens."""
    return round(fmean(len(prompts[index].tokens) for index in prompts.indices[:_PROMPTS_MEASURED]))


def check_model(settings: Settings, model: Path) -> None:
    """What a worker would die of later is found here, from the files' headers."""
    longest = settings.data.max_prompt_length + settings.rollout.max_response_length
    architecture = read_architecture(model)
    architecture.check_length(longest)
    if problem := weights_damage(model) or _lack(architecture, model):
        raise ValueError(f"the weights of model {settings.model.path!r} cannot be used: {problem}; fetch them again")
    if settings.model.lora_rank:
        from tailrace.trainer import lora  # needs torch, which other controllers do without

        lora.check(settings.model, model)


def _lack(architecture: Architecture, model: Path) -> str | None:
    held = tensor_names(model)
    # A network saved without its head calls its weights the same, less `model.`; the trainer loads those too.
    missing = (n for n in weight_shapes(architecture) if n not in held and n.removeprefix("model.") not in held)
    first = next(missing, None)
    return f"they lack {first}, which a model of this config.json needs" if first else None


def _notes(name: str, prompts: PromptSet) -> tuple[str, ...]:
    left_out = f", {prompts.num_filtered} left out as too long" if prompts.num_filtered else ""
    return (f"{name}: {len(prompts)} prompts from {prompts.path}{left_out}", *prompts.notes)


def _fingerprints(model: Path, sources: Mapping[str, Source]) -> dict[str, str]:
    prompts = {_prompts_of(name): source.prompts.fingerprint() for name, source in sources.items()}
    return {"model": _model_fingerprint(model)} | prompts


def _prompts_of(source: str) -> str:
    return f"prompts of '{source}'"


def _check_saved_prompts(run: Path, fingerprints: Mapping[str, str]) -> None:
    """Responses are found by the index of their prompt: with other prompts they would be answers to other questions."""
    name = _prompts_of(TRAIN_SOURCE)
    if RunFiles.find(run).fingerprints().get(name) != fingerprints[name]:
        raise ValueError(f"rollout.from_run: the responses in {run} are to other prompts than this run's")


def _model_fingerprint(model: Path) -> str:
    """By configuration and file sizes: reading all weights would take as long as loading them."""
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
