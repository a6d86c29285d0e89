"""What the device knows about every slot, so that it can go on for several steps without the host.

The host writes a slot when a request is seated, and only then: afterwards the device is ahead of the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tailrace.devices.upload import upload
from tailrace.engines.native.sampler import NO_TOP_K, SamplingBatch
from tailrace.engines.native.sequences import SlotTable

MAX_STOPS = 16
"""Stop tokens that the device checks. The host checks all of them, a little later."""
_NO_TOKEN = -1


class SlotState:
    def __init__(self, num_slots: int, device: torch.device) -> None:
        def column(dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(num_slots, device=device, dtype=dtype)

        self.token = column(torch.int64)
        """The newest token of each slot. Its keys and values are not stored yet."""
        self.position = column(torch.int32)
        """The position of the newest token."""
        self.end = column(torch.int32)
        """Length of prompt and response at which the request ends."""
        self.prompt_length = column(torch.int32)
        self.key = column(torch.int64)
        """Key of the slot's random numbers."""
        self.is_done = column(torch.int32)
        self.stops = torch.full((num_slots, MAX_STOPS), _NO_TOKEN, device=device, dtype=torch.int64)
        self.temperature = torch.ones(num_slots, device=device)
        self.is_greedy = column(torch.int32)
        self.top_k = column(torch.int64)
        self.top_p = torch.ones(num_slots, device=device)
        self.min_p = column(torch.float32)
        self._device = device

    def write(
        self, slots: NDArray[np.int64], table: SlotTable, lengths: NDArray[np.int64], stops: Sequence[Sequence[int]]
    ) -> None:
        """Begin these slots. ``lengths``: their known tokens; ``stops``: the stop tokens of each."""
        settings = table.settings
        stop_rows = np.full((len(slots), MAX_STOPS), _NO_TOKEN, np.int64)
        for row, ids in zip(stop_rows, stops, strict=True):
            row[: len(ids)] = ids[:MAX_STOPS]
        values: dict[str, NDArray[np.generic]] = {
            "token": table.tokens[slots, lengths - 1],
            "position": lengths - 1,
            "end": table.end[slots],
            "prompt_length": table.prompt_length[slots],
            "key": table.key[slots].view(np.int64),
            "is_done": np.zeros(len(slots), np.int32),
            "stops": stop_rows,
            "temperature": settings.temperature[slots],
            "is_greedy": settings.is_greedy[slots],
            "top_k": settings.top_k[slots],
            "top_p": settings.top_p[slots],
            "min_p": settings.min_p[slots],
        }
        index = upload(slots, self._device)
        for name, value in values.items():
            target: torch.Tensor = getattr(self, name)
            target.index_copy_(0, index, upload(value, self._device).to(target.dtype))

    def sampling(self, row_slots: torch.Tensor) -> SamplingBatch:
        """Sampling parameters of rows, all of them as tensors. Empty rows get those of slot 0."""
        slots = row_slots.clamp(min=0)

        def column(values: torch.Tensor) -> torch.Tensor:
            return values.index_select(0, slots).unsqueeze(1)

        top_k, top_p, min_p = column(self.top_k), column(self.top_p), column(self.min_p)
        return SamplingBatch(
            temperature_N1=column(self.temperature),
            is_greedy_N1=column(self.is_greedy).bool(),
            top_k_N1=top_k,
            top_p_N1=top_p,
            log_min_p_N1=min_p.log(),
            is_truncated_N1=(top_k != NO_TOP_K) | (top_p < 1.0) | (min_p > 0.0),
        )
