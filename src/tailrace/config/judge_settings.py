"""Settings of the reward `judge`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, PositiveFloat, PositiveInt

from tailrace.config.section import Common, Seconds, Section

_PROMPT = "Question:\n{prompt}\n\nAnswer:\n{response}\n\nIs the answer right? Reply with Yes or No."


def _numbers_of_words(value: Any) -> Any:
    """The same value; ``ValueError`` if some word has no number.

    YAML reads ``{a=1}`` as a word without a number, and the word in ``{Yes: 1}`` as ``true``.
    """
    pairs = value.items() if isinstance(value, Mapping) else [(None, None)]
    if all(isinstance(word, str) and number is not None for word, number in pairs):
        return value
    raise ValueError('each word needs a number; on the command line write JSON, for example {"Yes": 1, "No": 0}')


class JudgeSettings(Section):
    """The reward `judge`: a model that scores responses."""

    model: Common[str | None] = None
    """The judge: a directory or Hugging Face id, as in `model.path`. With `url`, the name that the server knows.
    Default: there is no judge."""
    url: Common[str | None] = None
    """Address of an OpenAI-compatible server that runs the judge, such as `http://10.0.0.1:8000/v1`. Default: a worker
    of this run holds the model."""
    prompt: Common[str] = _PROMPT
    """What the judge is asked. `{response}`, `{prompt_text}` and every column of the prompt's row, such as `{answer}`,
    are filled in."""
    reply: str = ""
    """Text behind the prompt, filled in likewise. In chat form it is the assistant's turn, which is what a model with a
    reward head scores."""
    chat: Common[bool] = True
    """Apply the chat template of the judge. `false`: prompt and reply as they are."""
    answers: Common[Annotated[dict[str, FiniteFloat], BeforeValidator(_numbers_of_words)]] = Field(
        default={"Yes": 1.0, "No": 0.0}
    )
    """Words with which the judge may answer, and the score that each means. The score of a response is their mean,
    weighted by the probabilities of the words. Empty: the model has a reward head, which gives the score."""
    reading: Literal["logprobs", "text"] = "logprobs"
    """`logprobs`: read the probabilities of the answer words where the answer begins. `text`, with `url` only: let the
    judge write, and take the last answer word in its text, in upper or lower case."""
    max_reply_length: PositiveInt = 512
    """With `reading = "text"`, the most tokens that the judge writes."""
    workers: Common[PositiveInt] = 1
    """Judges, each with a copy of the model; with `url`, processes that send requests."""
    placement: Common[Literal["shared", "own"]] = "shared"
    """`shared`: judges compute on the devices of rollout. `own`: each has a device that nobody else uses."""
    memory_gb: Common[PositiveFloat | Literal["half"] | None] = None
    """GiB of its device that a judge may take. Layers that do not fit lie in host memory, and come to the device while
    others compute. `half`: what it needs with half of its layers. Default: no limit, all layers stay on the device;
    with the preset `rollpacker`: `half`, if judges compute on the GPUs of rollout."""
    profile: Path | None = None
    """What passes of the judge need, as `tailrace profile --judge` has measured it. Default: a judge with `memory_gb`
    measures it when it starts."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Precision of the judge. Default: that of `model.dtype`."""
    deterministic: bool = False
    """Compute each response alone, so that its score has the same bits whatever else is scored at that moment. On a GPU
    this is several times slower for short responses. On a CPU it is always so."""
    max_pass_tokens: PositiveInt = 65536
    """Most tokens that a judge computes together, unless a single response is longer."""
    max_requests: PositiveInt = 32
    """With `url`, the most requests that one worker has open at the same time."""
    timeout_s: Common[Seconds] = 120.0
    """Seconds that one pass of a judge, or one request to `url`, may take. After that its responses have the outcome
    `timeout`, and the judge is started again."""
    api_key_variable: str = "OPENAI_API_KEY"
    """With `url`, the environment variable that holds the key of the server; none is sent if it is not set."""
    threads: PositiveInt | None = None
    """Threads of a judge on a CPU. Default: one."""
