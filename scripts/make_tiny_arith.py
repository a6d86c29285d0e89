"""Makes `tiny-arith`, the model that ships, and its prompts; or measures it.

    python scripts/make_tiny_arith.py                 # prompts, tokenizer, pre-training, measurement
    python scripts/make_tiny_arith.py --only-prompts  # the prompt files alone, byte for byte the same every time
    python scripts/make_tiny_arith.py --evaluate      # accuracy, parse rate and lengths of a saved model

Pre-training sees the `pretrain` split alone: no prompt of the train or held-out files is ever in it. The loss covers
the responses, not the prompts, which are random and so cannot be learnt. A run is a function of its seed up to
floating-point differences between machines.

Two phases: first the skill (worked responses, chains that grow longer), then the habit (mostly guesses, a slip now and
then). What the model can do and what it does by habit are then far apart, and that gap is what reinforcement learning
closes. Without the first phase, as many steps teach a model of this size neither.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from arith_task import ANSWER_MARK, MAX_TERMS, Mix, Split, prompt_file, sample_chain, sample_response
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

ASSETS = Path(__file__).resolve().parent.parent / "src" / "tailrace" / "assets"
PROMPT_FILES: dict[str, tuple[Split, int]] = {"arith-train": ("train", 4000), "arith-heldout": ("heldout", 2000)}

PAD, BOS, EOS, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
VOCABULARY = (PAD, BOS, EOS, UNKNOWN, ANSWER_MARK, " ", "+", "-", "=", *"0123456789")
TOKEN_IDS = {token: index for index, token in enumerate(VOCABULARY)}
MAX_LENGTH = 1024

SKILL = Mix(terse_share_short=0.1, terse_share_long=0.1, slip_rate=0.0)
HABIT = Mix(terse_share_short=0.6, terse_share_long=0.45, slip_rate=0.01)
SKILL_SHARE = 0.7
"""Share of the steps spent on the skill."""
GROWTH_SHARE = 0.4
"""Share of the steps over which the longest chains grow from 4 terms to `MAX_TERMS`."""
FLAT_SHARE = 0.3
"""While learning the skill, share of chains whose number of terms is uniform: long ones are rare otherwise."""

Example = tuple[list[int], int]
"""Token ids of prompt and response, and the length of the prompt."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, and one for the answer mark; decoding inserts nothing."""
    core = Tokenizer(models.WordLevel(TOKEN_IDS, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(f"{ANSWER_MARK}|."), behavior="isolated")
    core.decoder = decoders.Fuse()
    core.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, TOKEN_IDS[BOS])])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_LENGTH,
        padding_side="left",
    )


def build_model() -> LlamaForCausalLM:
    special = {"pad_token_id": TOKEN_IDS[PAD], "bos_token_id": TOKEN_IDS[BOS], "eos_token_id": TOKEN_IDS[EOS]}
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=True,
        **special,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(**special)
    return model


def sample_example(rng: random.Random, progress: float) -> Example:
    """An example as it is due after `progress` (0..1) of the steps."""
    if progress < SKILL_SHARE:
        longest = 4 + int((MAX_TERMS - 4) * min(1.0, progress / GROWTH_SHARE))
        chain, mix = sample_chain(rng, "pretrain", max_terms=longest, flat_share=FLAT_SHARE), SKILL
    else:
        chain, mix = sample_chain(rng, "pretrain"), HABIT
    working, mark, answer = sample_response(chain, rng, mix).partition(ANSWER_MARK)
    prompt = [TOKEN_IDS[token] for token in (BOS, *chain.prompt)]
    return prompt + [TOKEN_IDS[token] for token in (*working, mark, *answer, EOS)], len(prompt)


def sample_batches(rng: random.Random, progress: float, batch_tokens: int) -> list[list[Example]]:
    """Batches of examples of similar lengths, so that little of a batch is padding, in random order."""
    pool = sorted((sample_example(rng, progress) for _ in range(2048)), key=lambda example: len(example[0]))
    batches: list[list[Example]] = [[]]
    for example in pool:
        if len(example[0]) * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
        batches[-1].append(example)
    rng.shuffle(batches)
    return batches


def pad_batch(examples: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Input ids and labels, padded on the right."""
    width = max(len(tokens) for tokens, _ in examples)
    input_ids = torch.full((len(examples), width), TOKEN_IDS[PAD])
    labels = torch.full((len(examples), width), -100)
    for row, (tokens, prompt_length) in enumerate(examples):
        input_ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, prompt_length : len(tokens)] = torch.tensor(tokens[prompt_length:])
    return input_ids, labels


def stream_batches(args: argparse.Namespace) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """One (input ids, labels) per step."""
    rng, step = random.Random(args.seed), 0
    while True:
        for examples in sample_batches(rng, step / args.steps, args.batch_tokens):
            if step == args.steps:
                return
            step += 1
            yield pad_batch(examples)


def learning_rate(step: int, num_steps: int, peak: float) -> float:
    """Linear warm-up over 100 steps, then a cosine down to 2 % of the peak."""
    if step < 100:
        return peak * (step + 1) / 100
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - 100) / max(1, num_steps - 100))))


def pretrain(args: argparse.Namespace) -> LlamaForCausalLM:
    torch.manual_seed(args.seed)
    model = build_model().to(args.device)
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.peak_lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    started = time.monotonic()
    for step, (input_ids, labels) in enumerate(stream_batches(args)):
        for parameters in optimizer.param_groups:
            parameters["lr"] = learning_rate(step, args.steps, args.peak_lr)
        logits = model(input_ids=input_ids.to(args.device)).logits[:, :-1].flatten(0, 1)
        targets = labels[:, 1:].flatten().to(args.device)
        # A sum, not a mean over the batch: batches of short responses must not weigh more, or terse ones would.
        loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum") / (args.batch_tokens / 2)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 250 == 249:
            nats = loss.item() * (args.batch_tokens / 2) / int((targets >= 0).sum())
            print(f"step {step + 1}/{args.steps}  loss {nats:.3f}  {time.monotonic() - started:.0f} s", flush=True)
    return model.cpu()


@torch.no_grad()
def respond(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[str], *, greedy: bool
) -> list[list[int]]:
    """Responses in the order of the prompts: token ids up to and including the end of sequence."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    sampling = {"do_sample": False} if greedy else {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    responses: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(order), 128):
        chunk = order[start : start + 128]
        encoded = tokenizer([prompts[index] for index in chunk], return_tensors="pt", padding=True)
        ids, mask = encoded["input_ids"], encoded["attention_mask"]
        output = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=512, **sampling)
        for index, row in zip(chunk, output[:, ids.shape[1] :].tolist(), strict=True):
            responses[index] = row[: row.index(TOKEN_IDS[EOS]) + 1] if TOKEN_IDS[EOS] in row else row
    return responses


def describe(rows: list[dict[str, str]], responses: list[list[int]], tokenizer: PreTrainedTokenizerFast) -> str:
    texts = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in responses]
    answers = [text.rpartition(ANSWER_MARK)[2].strip() if ANSWER_MARK in text else "" for text in texts]
    parsed = sum(answer.removeprefix("-").isdigit() for answer in answers) / len(rows)
    right = sum(answer == row["answer"] for row, answer in zip(rows, answers, strict=True)) / len(rows)
    worked = sum(not text.startswith(ANSWER_MARK) for text in texts) / len(rows)
    lengths = sorted(len(tokens) for tokens in responses)
    p50, p95 = lengths[len(lengths) // 2], lengths[len(lengths) * 95 // 100]
    return (
        f"accuracy {right:.3f}  parsed {parsed:.3f}  worked {worked:.3f}"
        f"  tokens mean {sum(lengths) / len(lengths):.1f} p50 {p50} p95 {p95} max {lengths[-1]}"
    )


def evaluate(args: argparse.Namespace) -> None:
    model = AutoModelForCausalLM.from_pretrained(args.output)
    tokenizer = AutoTokenizer.from_pretrained(args.output)
    for name in PROMPT_FILES:
        lines = (ASSETS / "prompts" / f"{name}.jsonl").read_text(encoding="ascii").splitlines()[: args.num_prompts]
        rows = [json.loads(line) for line in lines]
        for greedy in (False, True):
            torch.manual_seed(args.seed)
            responses = respond(model, tokenizer, [row["prompt"] for row in rows], greedy=greedy)
            print(f"{name:14} {'greedy' if greedy else 'T=1':6} {describe(rows, responses, tokenizer)}", flush=True)


def write_prompts() -> None:
    (ASSETS / "prompts").mkdir(parents=True, exist_ok=True)
    for name, (split, num_rows) in PROMPT_FILES.items():
        (ASSETS / "prompts" / f"{name}.jsonl").write_text(prompt_file(split, num_rows), encoding="ascii")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ASSETS / "tiny-arith", help="directory of the model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=7500)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--peak-lr", type=float, default=2e-3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="of pre-training")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--num-prompts", type=int, default=256, help="prompts of each file to measure on")
    parser.add_argument("--only-prompts", action="store_true")
    parser.add_argument("--evaluate", action="store_true")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    if not args.evaluate:
        write_prompts()
    if not args.evaluate and not args.only_prompts:
        pretrain(args).save_pretrained(args.output)
        build_tokenizer().save_pretrained(args.output)
        for path in args.output.iterdir():
            path.chmod(0o644)
    if not args.only_prompts:
        evaluate(args)


if __name__ == "__main__":
    main()
