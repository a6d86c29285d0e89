"""The LoRA adapters that an engine has loaded."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from vllm.lora.request import LoRARequest
from vllm.v1.engine.core_client import InprocClient

from tailrace.engines.contract import Unsupported


class Adapters:
    def __init__(self, client: InprocClient, max_adapters: int) -> None:
        self._client, self._max_adapters = client, max_adapters
        self._loaded: dict[str, LoRARequest] = {}
        self._numbers = count(1)

    def find(self, name: str | None) -> LoRARequest | None:
        """vLLM's description of the adapter with this name; ``ValueError`` if there is none."""
        if name is None:
            return None
        self._need_adapters()
        if name not in self._loaded:
            raise ValueError(f"there is no adapter '{name}'; loaded: {', '.join(self._loaded) or 'none'}")
        return self._loaded[name]

    def load(self, name: str, directory: Path) -> None:
        """Load an adapter. One that has the same name is replaced."""
        self._need_adapters()
        if name not in self._loaded and len(self._loaded) == self._max_adapters:
            raise ValueError(f"cannot load '{name}': {self._max_adapters} adapters are loaded already")
        self.drop(name)
        # A number of its own: vLLM keeps what it has loaded by number.
        lora = LoRARequest(lora_name=name, lora_int_id=next(self._numbers), lora_path=str(directory))
        self._client.add_lora(lora)
        self._loaded[name] = lora

    def drop(self, name: str) -> None:
        if (lora := self._loaded.pop(name, None)) is not None:
            self._client.remove_lora(lora.lora_int_id)

    def _need_adapters(self) -> None:
        if not self._max_adapters:
            raise Unsupported("the vllm engine was started without adapters: give it max_adapters")
