"""A checkpoint is a Hugging Face model directory, or a PEFT adapter directory, plus what it takes to go on exactly.

    config.json, model*.safetensors, tokenizer and generation files   loads with ``from_pretrained`` (fp32)
    adapter_config.json, adapter_model.safetensors                    with LoRA, instead of config.json and model*
    trainer_state.safetensors                                         AdamW's moments by parameter name
    critic.safetensors, critic_state.safetensors                      the same two for the critic, where there is one
    trainer_state.json                                                format, version, the settings it was made with
    checksums.json                                                    of every file above

Ranks that train together write ``__RANK_0.distcp`` and ``.metadata`` instead of all tensors above, and ``config.json``
or ``adapter_config.json`` beside them (``sharded_checkpoint.py``). Each kind can be read by any number of ranks.

Nothing is pickled but in ``.metadata``. Every file is flushed to disk; the caller renames the directory into place.
Loading with other settings than those it was made with is an error that names them, unless such a change is allowed
(``config/continuation.py``): the continuation would not be the same run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import JsonValue
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.continuation import ON_REQUEST, may_change, value_in
from tailrace.config.model_settings import ModelSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.core.ids import Version
from tailrace.store.checksums import write_checksums
from tailrace.trainer.checkpoints import sharded_checkpoint
from tailrace.trainer.checkpoints.sharded_checkpoint import Learners
from tailrace.trainer.optimizer.optimizer import device_of_moments
from tailrace.trainer.ranks.ranks import Ranks
from tailrace.trainer.step.critic import Critic

if TYPE_CHECKING:
    from tailrace.trainer.model.lora_adapter import Adapter

FORMAT = 1
MOMENTS_FILE = "trainer_state.safetensors"
CRITIC_FILE = "critic.safetensors"
CRITIC_MOMENTS_FILE = "critic_state.safetensors"
STATE_FILE = "trainer_state.json"
COMPANION_PATTERNS = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "spiece.model",
    "*.tiktoken", "chat_template*", "generation_config.json",
)  # fmt: skip
"""Files of the starting model that a checkpoint carries along."""

Identity = dict[str, JsonValue]

POLICY = "policy"


def identity(
    *,
    model: ModelSettings,
    settings: TrainerSettings,
    algorithm: AlgorithmSettings,
    temperature: float,
    max_steps: int,
    seed: int,
) -> Identity:
    """Settings that a checkpoint keeps. Those that are not free to change must be equal for a continuation."""
    given = {
        **{f"model.{key}": value for key, value in model.model_dump(mode="json", exclude={"path"}).items()},
        **{f"trainer.{key}": value for key, value in settings.model_dump(mode="json").items()},
        **{f"algorithm.{key}": value for key, value in algorithm.model_dump(mode="json").items()},
        "rollout.temperature": temperature,
        "schedule.max_steps": max_steps,
        "seed": seed,
    }
    return {name: value for name, value in given.items() if not may_change(name)}


def save(
    directory: Path,
    *,
    model: PreTrainedModel,
    adapter: Adapter | None,
    optimizer: torch.optim.AdamW,
    critic: Critic | None,
    version: Version,
    identity: Identity,
    source: Path,
    ranks: Ranks,
) -> None:
    """All ranks call it together. If it fails on one rank, it fails on all of them."""
    with _failing_together(ranks):
        directory.mkdir(parents=True, exist_ok=True)
    if ranks.size > 1:
        sharded_checkpoint.save(directory, _learners(model, optimizer, critic), ranks)
    else:
        _save_alone(directory, model, adapter, optimizer, critic)
    with _failing_together(ranks):  # after it the checkpoint is whole
        if ranks.index == 0:
            if ranks.size > 1:
                _save_config(directory, model, adapter)
            copy_companions(source, directory)
            state = {"format": FORMAT, "version": version, "settings": identity}
            (directory / STATE_FILE).write_text(json.dumps(state, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            write_checksums(directory)
            _flush(directory)


@contextmanager
def _failing_together(ranks: Ranks) -> Iterator[None]:
    """All ranks go through it together. If one of them cannot write its files, the others raise its reason too."""
    failure: OSError | ValueError | None = None
    try:
        yield
    except (OSError, ValueError) as error:
        failure = error
    reasons = ranks.gather(None if failure is None else str(failure))
    if failure is not None:
        raise failure
    if found := [reason for reason in reasons if reason is not None]:
        raise OSError(found[0])


def _save_alone(
    directory: Path,
    model: PreTrainedModel,
    adapter: Adapter | None,
    optimizer: torch.optim.AdamW,
    critic: Critic | None,
) -> None:
    if adapter is None:
        model.save_pretrained(directory)
    else:
        adapter.save(directory)
    save_file(_moments(model, optimizer), directory / MOMENTS_FILE)
    if critic is not None:
        weights = {name: value.detach().cpu().contiguous() for name, value in _learning(critic.model)}
        save_file(weights, directory / CRITIC_FILE)
        save_file(_moments(critic.model, critic.optimizer), directory / CRITIC_MOMENTS_FILE)


def _save_config(directory: Path, model: PreTrainedModel, adapter: Adapter | None) -> None:
    """Write what tells a reader of the tensors which model or adapter they belong to."""
    if adapter is None:
        model.config.save_pretrained(directory)
    else:
        adapter.save_config(directory)


def _learners(model: PreTrainedModel, optimizer: torch.optim.AdamW, critic: Critic | None) -> Learners:
    found: dict[str, tuple[torch.nn.Module, torch.optim.AdamW]] = {POLICY: (model, optimizer)}
    return found if critic is None else found | {"critic": (critic.model, critic.optimizer)}


def load(
    directory: Path,
    *,
    model: PreTrainedModel,
    adapter: Adapter | None,
    optimizer: torch.optim.AdamW,
    critic: Critic | None,
    identity: Identity,
    ranks: Ranks,
) -> Version:
    """Overwrite weights and moments in place; returns the version. All ranks call it together."""
    state = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
    if state["format"] != FORMAT:
        raise ValueError(f"{directory} has checkpoint format {state['format']}, this program reads {FORMAT}")
    _check_identity(directory, state["settings"], identity)
    if sharded_checkpoint.is_sharded(directory):
        sharded_checkpoint.load(directory, _learners(model, optimizer, critic), ranks)
        return Version(state["version"])
    if adapter is None:
        stored = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)
        _copy_weights(model, dict(stored.named_parameters()))
    else:
        adapter.load(directory)
    _restore_moments(model, optimizer, load_file(directory / MOMENTS_FILE))
    if critic is not None:
        _restore_weights(critic.model, load_file(directory / CRITIC_FILE))
        _restore_moments(critic.model, critic.optimizer, load_file(directory / CRITIC_MOMENTS_FILE))
    return Version(state["version"])


def copy_companions(source: Path, directory: Path) -> None:
    for pattern in COMPANION_PATTERNS:
        for file in sorted(source.glob(pattern)):
            if file.is_file():
                shutil.copyfile(file, directory / file.name)


def _check_identity(directory: Path, stored: Identity, given: Identity) -> None:
    # Whether a run may go on with other values on request is decided before a trainer starts, for the whole run.
    compared = [key for key in sorted(stored.keys() | given.keys()) if not may_change(key) and key not in ON_REQUEST]
    differences = [
        f"{key} was {value_in(stored, key)!r} and is {given.get(key)!r}"
        for key in compared
        if value_in(stored, key) != given.get(key)
    ]
    if differences:
        raise ValueError(f"{directory} was written with other settings: {'; '.join(differences)}")


def _moments(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _learning(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def _restore_weights(model: torch.nn.Module, weights: dict[str, Tensor]) -> None:
    _copy_weights(model, {name: weights[name] for name, _ in _learning(model)})


@torch.no_grad()
def _copy_weights(model: torch.nn.Module, weights: Mapping[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    for name, whole in weights.items():
        parameters[name].copy_(like(whole, parameters[name]))


def _restore_moments(model: torch.nn.Module, optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    restored: dict[str, dict[str, Any]] = {}
    for entry, value in moments.items():
        name, _, key = entry.rpartition("/")
        part = like(value, parameters[name]) if value.dim() else value
        restored.setdefault(name, {})[key] = part.to(device_of_moments(optimizer, parameters[name]))
    for name, state in restored.items():
        optimizer.state[parameters[name]] = state


def like(whole: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor as this rank holds it: divided as the parameter is."""
    if not isinstance(parameter, DTensor):
        return whole
    whole = whole.to(parameter.device)
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _flush(directory: Path) -> None:
    for path in (*directory.rglob("*"), directory):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
