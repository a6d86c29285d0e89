"""Finds the requests that ended, among those that gained tokens.

A slot may have gained several tokens at once. The first one that ends the response counts; tokens behind it are cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailrace.core.responses.response import Finish
from tailrace.engines.native.batcher import Batcher
from tailrace.engines.native.runner import Gained
from tailrace.engines.native.sequences import LiveRequest, SlotTable
from tailrace.engines.native.stops import StopTable
from tailrace.engines.stop_strings import DecodeText, stop_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    slot: int
    length: int
    """Length of prompt and response, the last token included."""
    finish: Finish


class Endings:
    def __init__(
        self, batcher: Batcher[Any], table: SlotTable, stops: StopTable, decode_text: DecodeText | None
    ) -> None:
        self._batcher, self._table, self._stops, self._decode_text = batcher, table, stops, decode_text

    def find(self, gained: Gained) -> list[Ending]:
        """Endings by a stop token or by length."""
        slots, table = gained.slots, self._table
        if not len(slots):
            return []
        lengths = self._batcher.length[slots]
        offsets = np.arange(gained.counts.max())
        # The new tokens of each slot side by side; columns behind a slot's last token repeat that token.
        columns = np.minimum((lengths - gained.counts)[:, None] + offsets, lengths[:, None] - 1)
        is_stop = self._stops.is_stop(table.stop_set[slots][:, None], table.tokens[slots[:, None], columns])
        is_stopped: NDArray[np.bool_] = np.asarray(is_stop.any(axis=1))
        ends = np.where(is_stopped, columns[np.arange(len(slots)), is_stop.argmax(axis=1)] + 1, lengths)
        is_ended = is_stopped | (lengths >= table.end[slots])
        ended = zip(slots[is_ended].tolist(), ends[is_ended].tolist(), is_stopped[is_ended].tolist(), strict=True)
        return [
            Ending(slot=slot, length=end, finish=Finish.STOP if stopped else Finish.LENGTH)
            for slot, end, stopped in ended
        ]

    def find_with_strings(self, gained: Gained, live_of: dict[int, LiveRequest]) -> list[Ending]:
        """Endings by stop tokens, stop strings or length. ``live_of``: the requests with stop strings, by slot."""
        ends = {ending.slot: ending for ending in self.find(gained)}
        for slot, count in zip(gained.slots.tolist(), gained.counts.tolist(), strict=True):
            if slot in live_of and (ending := self._string_ending(slot, count, live_of[slot])):
                known = ends.get(slot)
                if known is None or ending.length <= known.length:
                    ends[slot] = ending
        return list(ends.values())

    def _string_ending(self, slot: int, count: int, live: LiveRequest) -> Ending | None:
        assert self._decode_text is not None, "a request with stop strings is refused without decode_text"
        start = live.ticket.prompt_length
        response = self._table.tokens[slot, start : int(self._batcher.length[slot])]
        length = stop_length(response, count, live.request.sampling.stop_strings, self._decode_text)
        return None if length is None else Ending(slot=slot, length=start + length, finish=Finish.STOP)
