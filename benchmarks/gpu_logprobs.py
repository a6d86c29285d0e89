"""How far the log-probs of engine and trainer are from each other and from fp32, on a GPU in bfloat16.

    python benchmarks/gpu_logprobs.py MODEL_DIR --json benchmarks/results/gpu_logprobs_h200.json

The engine samples 24 prompts x 4 responses of at most 256 tokens. The trainer scores the same tokens, and so does
Transformers in float32 with matrix products in full precision. Histograms of the absolute differences are kept, with
the same ratio of log-probs that importance sampling sees: exp(trainer - engine).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rollout_workloads import QUESTIONS, as_chat
from transformers import AutoModelForCausalLM, AutoTokenizer

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.core.ids import GroupId, ResponseId
from tailrace.engines.contract import Request, Sampling
from tailrace.engines.native.engine import NativeEngine
from tailrace.engines.native.limits import EngineLimits
from tailrace.store.segment import ResponsePayload
from tailrace.trainer.batch import Sample
from tailrace.trainer.trainer import Trainer

GROUP_SIZE = 4
MAX_TOKENS = 256
EDGES = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, float("inf"))


def sample(options: argparse.Namespace) -> list[Sample]:
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    prompts = [np.array(tokenizer(as_chat(tokenizer, text))["input_ids"], np.int32) for text in QUESTIONS]
    limits = EngineLimits(max_running=256, max_length=max(map(len, prompts)) + MAX_TOKENS, prefill_chunk=8192)
    engine = NativeEngine(
        options.model, seed=0, limits=limits, device=options.device, dtype=getattr(torch, options.dtype)
    )
    requests = [
        Request(
            response_id=ResponseId(GroupId("bench", 0, number), member),
            prompt=prompt,
            prefix=prompt[:0],
            budget=MAX_TOKENS,
            sampling=Sampling(stop_token_ids=(tokenizer.eos_token_id,)),
        )
        for number, prompt in enumerate(prompts)
        for member in range(GROUP_SIZE)
    ]
    engine.submit(requests)
    found = []
    while engine.stats().num_running + engine.stats().num_waiting:
        found += [as_sample(output.segment, prompts) for output in engine.step()]
    return found


def as_sample(segment: Any, prompts: list[np.ndarray]) -> Sample:
    response = ResponsePayload(
        response_id=segment.response_id,
        tokens=segment.tokens,
        logprobs=segment.logprobs,
        behaviour_logprobs=segment.logprobs,
        mask=np.ones(len(segment.tokens), np.uint8),
        versions=((segment.version, len(segment.tokens)),),
    )
    prompt = prompts[segment.response.group.prompt]
    return Sample(response_id=segment.response, prompt=prompt, response=response, score=0.0)


def score_by_trainer(options: argparse.Namespace, samples: list[Sample]) -> list[np.ndarray]:
    trainer = Trainer(
        options.model,
        model=ModelSettings(device=options.device, dtype=options.dtype),
        settings=TrainerSettings(max_tokens_per_gpu=16384),
        algorithm=AlgorithmSettings(),
        temperature=1.0,
        max_steps=10,
        seed=0,
    )
    return [np.asarray(found) for found in trainer.forward(samples)]


@torch.inference_mode()
def score_in_fp32(options: argparse.Namespace, samples: list[Sample]) -> list[np.ndarray]:
    torch.backends.cuda.matmul.allow_tf32 = False
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).to(options.device).eval()
    found = []
    for each in samples:
        tokens = torch.tensor(np.concatenate([each.prompt, each.response.tokens]), device=options.device).long()
        logprobs = model(tokens[None]).logits[0, len(each.prompt) - 1 : -1].log_softmax(-1)
        found.append(logprobs.gather(1, tokens[len(each.prompt) :, None])[:, 0].cpu().numpy())
    return found


def histogram(one: list[np.ndarray], other: list[np.ndarray]) -> dict[str, Any]:
    gaps = np.abs(np.concatenate(one) - np.concatenate(other))
    counts, _ = np.histogram(gaps, EDGES)
    bars = {f"below {edge:g}": int(count) for edge, count in zip(EDGES[1:], counts, strict=True)}
    quantiles = {f"p{q}": float(f"{np.quantile(gaps, q / 100):.2e}") for q in (50, 95, 99, 100)}
    return {"mean": float(f"{gaps.mean():.2e}"), **quantiles, "tokens": bars}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="Hugging Face directory")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    samples = sample(options)
    engine = [each.response.logprobs for each in samples]
    trainer, exact = score_by_trainer(options, samples), score_in_fp32(options, samples)
    ratios = np.exp(np.concatenate(trainer) - np.concatenate(engine))
    result = {
        "model": options.model.name,
        "dtype": options.dtype,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else options.device,
        "tokens": len(ratios),
        "engine and trainer": histogram(engine, trainer),
        "engine and fp32": histogram(engine, exact),
        "trainer and fp32": histogram(trainer, exact),
        "importance ratio": {f"p{q}": float(np.quantile(ratios, q / 100).round(4)) for q in (1, 50, 99)},
    }
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
