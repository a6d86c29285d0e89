"""What a run knows of its judge before it starts: the files of its model, its template, its answer words.

They are read and checked without the weights, so that a mistake is found at once. A judge behind a server has no files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tailrace.config.judge_rules import missing_judge
from tailrace.config.judge_settings import JudgeSettings
from tailrace.config.run_preset import HALF
from tailrace.config.settings import Settings
from tailrace.core.outcomes import Part
from tailrace.data.models import resolve_model
from tailrace.data.tokenizer import load_tokenizer
from tailrace.judge.template import AnswerWord, JudgeTemplate, TemplateReader, answer_tokens
from tailrace.rewards.assignment import JUDGE, RewardAssignment
from tailrace.runtime.gpus.found_devices import is_cuda
from tailrace.sizing.judge_memory import judge_load
from tailrace.sizing.model_shape import ModelShape
from tailrace.sizing.offload_profile_file import read_profile
from tailrace.sizing.resident_layers import OffloadProfile
from tailrace.store.model_config import read_model_config
from tailrace.store.tensor_file import weights_damage
from tailrace.workers.judged_text import OF_RESPONSES

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSource:
    model: Path | None
    """Directory of the model; None: it runs behind a server."""
    template: JudgeTemplate
    answers: tuple[AnswerWord, ...]
    profile: OffloadProfile | None
    budget_bytes: int | None = None
    """Memory of its device that the judge may take; None: all layers stay there."""
    why_no_budget: str = ""
    """Why nothing is offloaded though the settings ask for half of the layers."""

    @classmethod
    def load(cls, settings: Settings, rewards: RewardAssignment) -> Self | None:
        """The judge of a run; None if no prompt asks for it. ``ValueError`` or ``OSError`` if it cannot be used."""
        judge = settings.reward.judge
        uses = rewards.uses_of(Part.JUDGE)
        if not uses:
            return None
        if (sentence := missing_judge(judge)) is not None:
            raise ValueError(sentence)
        assert judge.model is not None
        template = JudgeTemplate(user=judge.prompt, assistant=judge.reply, is_chat=judge.chat)
        _check_fields(template, uses[0].columns)
        source = cls(
            model=None if judge.url is not None else _resolved(judge.model),
            template=template,
            answers=tuple(AnswerWord(word=word, value=value) for word, value in judge.answers.items()),
            profile=None if judge.profile is None else read_profile(judge.profile, model=judge.model),
        )
        source.check()
        return source.with_budget(settings)

    def with_budget(self, settings: Settings) -> Self:
        """The same with the memory that the settings allow it."""
        asked = settings.reward.judge.memory_gb
        if self.model is None or asked is None:
            return self
        if asked != HALF:
            return replace(self, budget_bytes=int(float(asked) * 2**30))
        if not is_cuda(settings.model.device):
            return replace(self, why_no_budget="on a CPU they are in its memory anyway")
        try:
            load = judge_load(settings, ModelShape.read(self.model), self.profile, is_cuda=True)
        except ValueError as error:
            return replace(self, why_no_budget=str(error))
        return replace(self, budget_bytes=load.budget_bytes)

    def check(self) -> None:
        """``ValueError`` if the model's files, its tokenizer, the template and the answer words do not fit together.
        No weight is read."""
        if self.model is None:
            return
        config = read_model_config(self.model)
        if problem := weights_damage(self.model):
            raise ValueError(f"the weights of the judge cannot be used: {problem}; fetch them again")
        if self.profile is not None and self.profile.num_layers != config.get("num_hidden_layers"):
            raise ValueError(
                f"reward.judge.profile is of a model with {self.profile.num_layers} layers, and the judge has"
                f" {config.get('num_hidden_layers')}"
            )
        tokenizer = load_tokenizer(self.model)
        try:
            TemplateReader(self.template, tokenizer)
        except ValueError as error:
            raise ValueError(f"{error} (is_chat is the setting reward.judge.chat)") from error
        try:
            answer_tokens([answer.word for answer in self.answers], tokenizer)
        except ValueError as error:
            raise ValueError(f"reward.judge.answers: {error}") from error

    def fingerprints(self) -> Iterator[tuple[str, str]]:
        """Hashes of the model's configuration, of the sizes of its files, and of its tokenizer."""
        if self.model is None:
            return
        digest = hashlib.sha256((self.model / "config.json").read_bytes())
        for path in sorted(self.model.glob("*.safetensors")):
            digest.update(f"{path.name} {path.stat().st_size}".encode())
        for path in (self.model / name for name in _TOKENIZER_FILES):
            digest.update(path.read_bytes() if path.exists() else b"")
        yield "judge", digest.hexdigest()

    def note(self, judge: JudgeSettings) -> str:
        """What judges, for people."""
        if self.model is None:
            how = "in its text" if judge.reading == "text" else "by their log-probs"
            return f"judge: {judge.model} behind {judge.url}, answer words {self._words()} read {how}"
        how = f"answer words {self._words()}" if self.answers else "a reward head"
        kept = f"; no layers in host memory: {self.why_no_budget}" if self.why_no_budget else ""
        return f"judge: {judge.model}, with {how}{kept}"

    def _words(self) -> str:
        return ", ".join(f"{answer.word!r} = {answer.value:g}" for answer in self.answers)


def unused_judge(settings: Settings, judge: JudgeSource | None) -> tuple[str, ...]:
    """A line if there are settings of a judge and nothing asks for it."""
    if judge is not None or not settings.reward.judge.model_fields_set:
        return ()
    return (f"note: reward.judge is given, but no prompt asks for the reward {JUDGE!r} (reward.functions)",)


def _resolved(name: str) -> Path:
    try:
        return resolve_model(name)
    except ValueError as error:
        raise ValueError(f"reward.judge.model: {error}") from error


def _check_fields(template: JudgeTemplate, columns: tuple[str, ...]) -> None:
    if missing := template.missing([*columns, *OF_RESPONSES]):
        names = ", ".join(f"{{{name}}}" for name in missing)
        known = ", ".join([*OF_RESPONSES, *columns])
        raise ValueError(
            f"reward.judge.prompt has {names}, which is no column of every prompt that the judge scores; it may have"
            f" {known}"
        )
