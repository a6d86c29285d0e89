"""The engines that settings can choose, and the check that the chosen one can do what the settings ask.

Importing this file imports neither torch nor vllm: the controller checks the settings before any worker starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tailrace.config.device_kind import is_cpu
from tailrace.config.memory_release import may_park, releases_memory
from tailrace.config.rollout_settings import RolloutSettings
from tailrace.config.settings import Settings
from tailrace.engines.contract import Capabilities, Unsupported
from tailrace.engines.native import capabilities as native
from tailrace.engines.native.architecture import check_checkpoint as check_native_checkpoint
from tailrace.engines.native.paged_support import known_obstacle, plain_line
from tailrace.engines.replay import capabilities as replay
from tailrace.engines.timed import capabilities as timed
from tailrace.engines.vllm import capabilities as vllm
from tailrace.engines.vllm import models as vllm_models
from tailrace.engines.vllm import versions as vllm_versions
from tailrace.store.model_config import is_mixture, read_model_config, vocabulary_size


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    capabilities: Capabilities
    chosen_by: str | None
    """The setting that chooses this engine; None if the engine is no substitute for another one."""
    check_checkpoint: Callable[[Settings, Path], None] | None = None
    """Raises ``Unsupported`` if the engine cannot run a model (given by its directory) with these settings; None if the
    engine runs no model."""
    capabilities_on_cpu: Capabilities | None = None
    """Capabilities on a CPU, if they are not the same there."""

    def capabilities_on(self, device: str) -> Capabilities:
        """``device``: as ``model.device`` names it."""
        if self.capabilities_on_cpu is None or not is_cpu(device):
            return self.capabilities
        return self.capabilities_on_cpu


def _check_native(settings: Settings, checkpoint: Path) -> None:
    check_native_checkpoint(checkpoint, settings.data.max_prompt_length + settings.rollout.max_response_length)


def _check_vllm(settings: Settings, checkpoint: Path) -> None:
    vllm_versions.check_version(vllm_versions.installed_version())
    if (sentence := division_refusal(settings, read_model_config(checkpoint))) is not None:
        raise Unsupported(sentence)
    if is_cpu(settings.model.device):
        vllm_models.check_on_cpu(checkpoint)


def _check_vocabulary(checkpoint: Path) -> None:
    vocabulary_size(checkpoint)


ENGINES: dict[str, EngineKind] = {
    "native": EngineKind(
        capabilities=native.CAPABILITIES,
        chosen_by="rollout.engine = 'native'",
        check_checkpoint=_check_native,
    ),
    "vllm": EngineKind(
        capabilities=vllm.ON_GPU,
        capabilities_on_cpu=vllm.ON_CPU,
        chosen_by="rollout.engine = 'vllm'",
        check_checkpoint=_check_vllm,
    ),
    "timed": EngineKind(
        capabilities=timed.CAPABILITIES,
        chosen_by=None,
        check_checkpoint=lambda _, checkpoint: _check_vocabulary(checkpoint),
    ),
    "replay": EngineKind(
        capabilities=replay.CAPABILITIES, chosen_by="rollout.from_run, which takes the responses of a saved run"
    ),
}


class EngineChoice(NamedTuple):
    engine: str
    reason: str | None
    """Why, if the settings leave the choice open; else None."""


def engine_name(rollout: RolloutSettings) -> str:
    """Name of the engine that the settings choose; ``auto`` if they leave it open."""
    return rollout.engine if rollout.from_run is None else "replay"


def choose_engine(
    settings: Settings,
    checkpoint: Path,
    *,
    find_vllm: Callable[[], str | None] = vllm_versions.installed_version,
) -> EngineChoice:
    """Choose between native and vLLM if the settings leave it open: native, unless only vLLM can do what they ask.

    ``find_vllm`` returns the installed version of vLLM.
    """
    named = engine_name(settings.rollout)
    if named != "auto":
        return EngineChoice(named, None)
    lacking = _lacking("native", settings, checkpoint, _check_native)
    if lacking is None:
        return EngineChoice("native", "it can do what these settings ask, and needs no other package")
    version = find_vllm()
    if also := _lacking("vllm", settings, checkpoint, lambda *_: vllm_versions.check_version(version)):
        return EngineChoice("native", f"vllm is no choice: {also}")
    return EngineChoice("vllm", f"{lacking}; vLLM {version} is installed")


def decoding_line(rollout: RolloutSettings, head_dim: int) -> str | None:
    """Line that says why ``rollout.decoding = "auto"`` will be plain on a GPU, as far as settings and model tell.

    None if they do not stand in the way, or if the engine is not the native one. ``head_dim``: dimensions of an
    attention head.
    """
    if engine_name(rollout) != "native" or rollout.decoding != "auto":
        return None
    obstacle = known_obstacle(head_dim, deterministic=rollout.deterministic, is_cuda=True)
    return plain_line(obstacle) if obstacle else None


def with_chosen_engine(settings: Settings, checkpoint: Path) -> RolloutSettings:
    """Rollout settings that name the engine, and say that the trainer needs the experts if it does."""
    rollout = settings.rollout
    if settings.trainer.replay_routing:
        rollout = rollout.model_copy(update={"return_routing": "always"})
    if engine_name(rollout) != "auto":
        return rollout
    return rollout.model_copy(update={"engine": choose_engine(settings, checkpoint).engine})


def check_engine(settings: Settings, checkpoint: Path) -> None:
    """``ValueError`` if the chosen engine cannot do what the settings ask, or cannot run the model."""
    name, why = choose_engine(settings, checkpoint)
    for sentence in refusals(settings, ENGINES[name].capabilities_on(settings.model.device)):
        raise Unsupported(f"{sentence}; {why}" if why else sentence)
    if (asking := _asks_for_routing(settings)) and not is_mixture(checkpoint):
        raise Unsupported(f"{asking} is for mixtures of experts, and the model in {checkpoint} is none")
    check = ENGINES[name].check_checkpoint
    try:
        if check is not None:
            check(settings, checkpoint)
    except Unsupported as error:
        others = [other.chosen_by for other in ENGINES.values() if other.chosen_by and other is not ENGINES[name]]
        raise Unsupported(f"{error}; other engines: {', '.join(others)}") from error


def _lacking(
    name: str, settings: Settings, checkpoint: Path, check_checkpoint: Callable[[Settings, Path], None]
) -> str | None:
    """Why this engine cannot serve the run; None if it can."""
    for sentence in refusals(settings, ENGINES[name].capabilities_on(settings.model.device)):
        return sentence
    try:
        check_checkpoint(settings, checkpoint)
    except Unsupported as error:
        return str(error)
    return None


def _asks_for_routing(settings: Settings) -> str | None:
    """The setting that needs the experts of each token, if there is one."""
    if settings.trainer.replay_routing:
        return "trainer.replay_routing"
    return "rollout.return_routing = 'always'" if settings.rollout.return_routing == "always" else None


def division_refusal(settings: Settings, config: Mapping[str, Any]) -> str | None:
    """Why an engine that divides models cannot divide one with this ``config.json`` as the settings ask; None if it
    can."""
    rollout = settings.rollout
    for size in sorted({rollout.tensor_parallel_size, *rollout.parallel_sizes}):
        setting = "rollout.tensor_parallel_size" if not rollout.parallel_sizes else "one of rollout.parallel_sizes"
        if (sentence := vllm_models.parts_refusal(config, size, setting=setting)) is not None:
            return sentence
    return None


def refusals(settings: Settings, capabilities: Capabilities) -> Iterator[str]:
    """One sentence for each setting that needs a capability the engine lacks."""
    name = capabilities.name
    if settings.rollout.deterministic and not capabilities.has_deterministic_mode:
        yield f"rollout.deterministic: the {name} engine has no deterministic mode; set it to false"
    yield from _too_large(settings, capabilities)
    if (asking := _asks_for_routing(settings)) and not capabilities.returns_routing:
        yield f"{asking}: the {name} engine does not return the experts of tokens"
    if settings.trainer.replay_routing and settings.rollout.return_routing == "never":
        yield "trainer.replay_routing needs the experts that the rollout chose, but rollout.return_routing is 'never'"
    if releases_memory(settings) and not capabilities.releases_memory:
        asked = settings.schedule
        is_colocated = asked.placement == "colocated"
        asking = "schedule.placement is 'colocated'" if is_colocated else "schedule.lending lends instances to training"
        yield (
            f"{asking}, but the {name} engine cannot release its memory while training runs; set it to"
            f" '{'shared' if is_colocated else 'never'}'"
        )
    if settings.rollout.park == "always" and may_park(settings) and not capabilities.releases_memory:
        where = " here" if name == "vllm" else ""
        yield (
            f"rollout.park is 'always', but the {name} engine cannot release its memory{where}, so instances of another"
            " parallel size cannot wait: set it to 'auto' or 'never'"
        )
    if settings.eval_interval is not None and not capabilities.uses_weights:
        yield (
            f"eval_interval is given, but responses of the {name} engine say nothing about the weights being trained;"
            " set it to null"
        )


def _too_large(settings: Settings, capabilities: Capabilities) -> Iterator[str]:
    rollout, most = settings.rollout, capabilities.max_parallel_size
    if rollout.tensor_parallel_size > most:
        yield (
            f"rollout.tensor_parallel_size is {rollout.tensor_parallel_size}, but the {capabilities.name} engine uses"
            f" at most {most}"
        )
    elif max(rollout.parallel_sizes, default=1) > most:
        yield (
            f"rollout.parallel_sizes has {max(rollout.parallel_sizes)}, but the {capabilities.name} engine uses at most"
            f" {most}"
        )
