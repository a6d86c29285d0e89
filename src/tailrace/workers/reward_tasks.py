"""How a response reaches a reward process: tokens by address where it sees the payload store's files, else as bytes.

The reward process makes the text: the tokenizer's work is the same wherever it is done, and there are many reward
processes but one controller. Importing this needs no numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tailrace.core.commands import CaseLimits
from tailrace.core.ids import ResponseId
from tailrace.data.detokenizer import Decode
from tailrace.rewards.score_task import ScoreTask
from tailrace.store.place import ResponseAddress
from tailrace.store.token_reader import read_tokens, unpack_tokens

_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTokens:
    """The tokens themselves."""

    data: bytes
    """Little-endian int32 numbers."""

    def read(self) -> tuple[int, ...]:
        return unpack_tokens(self.data, len(self.data) // _TOKEN_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTokens:
    """Where the tokens lie. The reward process reads them; they never pass through the controller."""

    directory: Path
    """Directory of the payload store."""
    address: ResponseAddress

    def read(self) -> tuple[int, ...]:
        return read_tokens(self.directory, self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTask:
    """A `ScoreTask` whose text is not made yet."""

    response_id: ResponseId
    row: Mapping[str, object]
    prompt_text: str
    prompt: SentTokens
    response: SentTokens | StoredTokens
    rewards: tuple[str, ...]
    source: str
    case_limits: CaseLimits | None = None

    def read(self, decode: Decode) -> ScoreTask:
        """The task with its text; `OSError` or `DamagedStore` if the response cannot be read."""
        tokens = self.response.read()
        return ScoreTask(
            response_id=self.response_id,
            row=self.row,
            response=decode(tokens),
            prompt_text=self.prompt_text,
            prompt_tokens=self.prompt.read(),
            response_tokens=tokens,
            rewards=self.rewards,
            source=self.source,
            case_limits=self.case_limits,
        )


RewardTask = ScoreTask | TokenTask
