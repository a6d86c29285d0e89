"""A tokenizer whose tokens can be counted by eye."""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer(*, chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """One token per character (id = position in the alphabet), with `^` in front by default."""
    alphabet = "^abcdefghijklmnopqrstuvwxyz<>/0123456789+= "
    backend = Tokenizer(models.WordLevel({c: i for i, c in enumerate(alphabet)}, unk_token="^"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.post_processor = processors.TemplateProcessing(single="^ $A", special_tokens=[("^", 0)])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="^")
    made.chat_template = chat_template
    return made
