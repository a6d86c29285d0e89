"""The engines that settings can choose, and the check that the chosen one can do what the settings ask.

Importing this file imports no torch: the controller checks the settings before any worker starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tailrace.config.settings import RolloutSettings, Settings
from tailrace.engines.contract import Capabilities, Unsupported
from tailrace.engines.native import capabilities as native
from tailrace.engines.native.architecture import check_checkpoint as check_native_checkpoint
from tailrace.engines.replay import capabilities as replay


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    capabilities: Capabilities
    chosen_by: str
    """The setting that chooses this engine."""
    check_checkpoint: Callable[[Path, int], None] | None = None
    """Raises ``Unsupported`` if the engine cannot run a model (given by its directory) with sequences of this length;
    None if the engine runs no model."""


ENGINES: dict[str, EngineKind] = {
    "native": EngineKind(
        capabilities=native.CAPABILITIES,
        chosen_by="rollout.engine = 'native'",
        check_checkpoint=check_native_checkpoint,
    ),
    "replay": EngineKind(
        capabilities=replay.CAPABILITIES, chosen_by="rollout.from_run, which takes the responses of a saved run"
    ),
}


def engine_name(rollout: RolloutSettings) -> str:
    """Name of the engine that the settings choose."""
    return rollout.engine if rollout.from_run is None else "replay"


def check_engine(settings: Settings, checkpoint: Path) -> None:
    """``ValueError`` if the chosen engine cannot do what the settings ask, or cannot run the model."""
    kind = ENGINES[engine_name(settings.rollout)]
    for sentence in refusals(settings, kind.capabilities):
        raise Unsupported(sentence)
    if kind.check_checkpoint is None:
        return
    try:
        kind.check_checkpoint(checkpoint, settings.data.max_prompt_length + settings.rollout.max_response_length)
    except Unsupported as error:
        others = [other.chosen_by for other in ENGINES.values() if other is not kind]
        raise Unsupported(f"{error}; other engines: {', '.join(others)}") from error


def refusals(settings: Settings, capabilities: Capabilities) -> Iterator[str]:
    """One sentence for each setting that needs a capability the engine lacks."""
    name = capabilities.name
    if settings.rollout.deterministic and not capabilities.has_deterministic_mode:
        yield f"rollout.deterministic: the {name} engine has no deterministic mode; set it to false"
    if settings.schedule.placement == "colocated" and not capabilities.releases_memory:
        yield (
            f"schedule.placement is 'colocated', but the {name} engine cannot release its memory while training runs;"
            " set it to 'shared'"
        )
    if settings.eval_interval is not None and not capabilities.uses_weights:
        yield (
            f"eval_interval is given, but responses of the {name} engine say nothing about the weights being trained;"
            " set it to null"
        )
