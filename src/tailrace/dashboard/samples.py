"""Responses to show, read from the payload store without opening it: its writer may be at work.

A record that is cut off or damaged ends its file for this reader; nothing is repaired. Only the newest ``MAX_BYTES``
of payload are looked at, so a run that keeps everything costs no more than any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.config.rules import TRAIN_SOURCE
from tailrace.core.ids import ResponseId
from tailrace.data.columns import Columns
from tailrace.data.models import built_in_models, resolve_model
from tailrace.data.rows import HUB_PREFIX, read_rows
from tailrace.observe.journal.run_files import RunFiles
from tailrace.observe.prompts.fates import EVALUATED, TRAINED, Fate, Fates
from tailrace.store.record import decode
from tailrace.store.record_frame import DamagedRecord

MAX_BYTES = 48 * 1024 * 1024
MAX_STEPS, MAX_CHARACTERS = 4, 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSample:
    response_id: ResponseId
    step: int | None
    prompt: str
    """Empty where the prompts cannot be read any more."""
    text: str
    score: float
    outcome: str
    detail: str
    length: int
    finish: str


def choose(fates: Fates) -> list[ResponseId]:
    """The best and the worst response of the most divided group, for every trained step, newest step first.

    A run that does not train has looked at its training prompts once, as step 0.
    """
    steps: dict[int, list[Fate]] = {}
    for fate in fates.groups.values():
        is_shown = fate.state == TRAINED or (fate.state == EVALUATED and fate.group.source == TRAIN_SOURCE)
        if is_shown and fate.step is not None:
            steps.setdefault(fate.step, []).append(fate)
    chosen: list[ResponseId] = []
    for step in sorted(steps, reverse=True):
        ordered = [_by_score(fate) for fate in steps[step]]
        divided = max(ordered, key=lambda found: found[-1][0] - found[0][0])
        chosen += list(dict.fromkeys((divided[-1][1], divided[0][1])))
    return chosen


def _by_score(fate: Fate) -> list[tuple[float, ResponseId]]:
    is_evaluated = fate.state == EVALUATED
    notes = fate.responses.items()
    return sorted((note.score, response) for response, note in notes if note.is_trained or is_evaluated)


def load(files: RunFiles, fates: Fates) -> list[ShownSample]:
    """Samples of a few steps, spread over the steps whose payload still exists; empty if none does."""
    chosen = choose(fates)
    tokens = read_tokens(files.payload, set(chosen))
    whole = [r for r in chosen if len(tokens.get(r, ())) == fates.groups[r.group].responses[r].length > 0]
    steps = list(dict.fromkeys(fates.groups[r.group].step for r in whole))
    shown = {steps[index * (len(steps) - 1) // max(MAX_STEPS - 1, 1)] for index in range(MAX_STEPS)} if steps else set()
    wanted = [r for r in whole if fates.groups[r.group].step in shown]
    to_text, prompts = _decoder(files), _prompts(files.config(), {r.group.prompt for r in wanted})
    return [_sample(r, fates.groups[r.group], to_text(tokens[r]), prompts.get(r.group.prompt, "")) for r in wanted]


def _sample(response: ResponseId, fate: Fate, text: str, prompt: str) -> ShownSample:
    note = fate.responses[response]
    return ShownSample(
        response_id=response,
        step=fate.step,
        prompt=_cut(prompt),
        text=_cut(text),
        score=note.score,
        outcome=note.outcome.value if note.outcome else "",
        detail=note.detail,
        length=note.length,
        finish=note.finish.value if note.finish else "",
    )


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} ... ({len(text)} characters in all)"


def read_tokens(folder: Path, wanted: set[ResponseId]) -> dict[ResponseId, list[int]]:
    """The stored tokens of each response, without responses whose beginning was deleted."""
    names: list[Path] = []
    size = 0
    for path in sorted(folder.glob("payload-*.bin"), reverse=True):
        size += path.stat().st_size
        if names and size > MAX_BYTES:
            break
        names.append(path)
    found: dict[ResponseId, list[int]] = {}
    for path in reversed(names):
        _scan(path, wanted, found)
    return found


def _scan(path: Path, wanted: set[ResponseId], found: dict[ResponseId, list[int]]) -> None:
    try:
        buffer = memoryview(path.read_bytes())
    except FileNotFoundError:
        return  # its writer needed it no longer
    offset = 0
    while offset < len(buffer):
        try:
            record = decode(buffer, offset)
        except DamagedRecord:
            return
        offset += record.num_bytes
        header = record.header
        if header.response_id in wanted and header.start <= len(found.get(header.response_id, ())):
            held = found.setdefault(header.response_id, [])
            held[header.start :] = record.segment().tokens.tolist()


def _decoder(files: RunFiles) -> Callable[[Sequence[int]], str]:
    """A function that turns tokens into text with the run's tokenizer, or into numbers if there is none."""
    model = str(files.config().get("model", {}).get("path", ""))
    places = [*reversed(files.checkpoints()), resolve_model(model) if model in built_in_models() else Path(model)]
    for place in places:
        if (place / "tokenizer.json").is_file():
            try:
                from tokenizers import Tokenizer
            except ModuleNotFoundError:
                break
            tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
            return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False))
    return lambda tokens: "tokens " + " ".join(map(str, tokens))


def _prompts(config: Mapping[str, Any], indexes: set[int]) -> dict[int, str]:
    """Texts of training prompts by index, as far as they can still be read. Nothing is downloaded."""
    data = config.get("data", {})
    sources = data.get("sources") or [{"path": data.get("train", "")}]
    if not indexes or any(source["path"].startswith(HUB_PREFIX) for source in sources):
        return {}
    texts: list[str] = []
    for source in sources:
        column = source.get("prompt_column") or data.get("prompt_column")
        try:
            rows = list(read_rows(source["path"]))
            columns = Columns.detect(source["path"], [row for _, row in rows], prompt=column)
            texts += [_words(columns.canonical(row, place)["prompt"]) for place, row in rows]
        except (ImportError, LookupError, OSError, ValueError):
            return {}  # the file moved or changed since: responses are shown without their prompts
    return {index: texts[index] for index in indexes if index < len(texts)}


def _words(prompt: object) -> str:
    if isinstance(prompt, list):
        return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in prompt)
    return str(prompt)
