"""How often vLLM and the trainer choose the same experts of a mixture, and what replaying vLLM's choice does.

    python benchmarks/moe_routing.py --json benchmarks/results/moe_routing.json     (needs vLLM; two minutes on a CPU)

vLLM generates responses with a random Qwen3-MoE in float32. The trainer's network scores the same tokens with the same
weights, once with its own choice of experts and once with vLLM's. It computes in float32 or in bfloat16 (autocast).
bfloat16 stands for any difference between the two: vLLM's own bfloat16 kernels for experts do not run on every CPU.

Experts are not known for the prompt, except its last token. A prompt of one token therefore shows what replay does
where all experts are known.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tailrace.engines.vllm.versions import installed_version, prepare_environment

prepare_environment(is_gpu=False)  # before vLLM is imported

from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM  # noqa: E402

from tailrace.algorithms import kl  # noqa: E402
from tailrace.core.ids import GroupId, ResponseId, Version  # noqa: E402
from tailrace.engines.contract import Request, Sampling  # noqa: E402
from tailrace.engines.vllm.engine import VllmEngine  # noqa: E402
from tailrace.engines.vllm.options import VllmOptions  # noqa: E402
from tailrace.store.segment import join  # noqa: E402
from tailrace.trainer.batch import Sample  # noqa: E402
from tailrace.trainer.model import routers  # noqa: E402
from tailrace.trainer.model.collate import MicroBatch, collate  # noqa: E402
from tailrace.trainer.model.model_files import load_model  # noqa: E402
from tailrace.trainer.model.network import Network  # noqa: E402

SHAPE = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
}
PROMPT_LENGTHS = (1, 16)


def write_model(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE)).save_pretrained(folder)


def requests(prompt_length: int, options: argparse.Namespace) -> list[Request]:
    random = np.random.default_rng(options.seed)
    prompts = random.integers(0, SHAPE["vocab_size"], (options.prompts, prompt_length)).astype(np.int32)
    return [
        Request(
            response_id=ResponseId(GroupId("bench", 0, number), member),
            prompt=prompt,
            prefix=prompt[:0],
            budget=options.tokens,
            sampling=Sampling(),
        )
        for number, prompt in enumerate(prompts)
        for member in range(options.responses)
    ]


def generate(engine: VllmEngine, asked: list[Request]) -> list[Sample]:
    engine.submit(asked)
    found = {}
    while len(found) < len(asked):
        found |= {output.segment.response_id: output.segment for output in engine.step()}
    return [
        Sample(
            response_id=request.response_id,
            prompt=request.prompt,
            response=join(request.response_id, [found[request.response_id]]),
            score=0.0,
        )
        for request in asked
    ]


@torch.no_grad()
def compare(folder: Path, samples: list[Sample], dtype: str, *, replays: bool) -> dict[str, float]:
    device = torch.device("cpu")
    autocast = None if dtype == "float32" else getattr(torch, dtype)
    network = Network(load_model(folder, device=device), temperature=1.0, autocast=autocast, replays_routing=replays)
    micro = collate(samples, [0.0] * len(samples), Version(0), device)
    trainer_BT = micro.spread(network.score(micro).logprobs_N)
    sums = {name: float(value) for name, value in network.routers.sums(micro).items()}
    return _differences(micro, trainer_BT) | routers.metrics(sums)


def _differences(micro: MicroBatch, trainer_BT: torch.Tensor) -> dict[str, float]:
    engine, trainer = (values.double()[micro.mask_BT] for values in (micro.behaviour_logprobs_BT, trainer_BT))
    return {
        "mismatch/logprob_abs_diff": float((engine - trainer).abs().mean()),
        "mismatch/logprob_abs_diff_max": float((engine - trainer).abs().max()),
        "mismatch/kl": float(kl.k3(engine, trainer).mean()),
    }


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        write_model(Path(name), options.seed)
        limits = VllmOptions(max_running=32, max_length=max(PROMPT_LENGTHS) + options.tokens, routing="always")
        engine = VllmEngine(Path(name), seed=options.seed, options=limits)
        for prompt_length in PROMPT_LENGTHS:
            samples = generate(engine, requests(prompt_length, options))
            for trainer, replays in product(("float32", "bfloat16"), (False, True)):
                found = compare(Path(name), samples, trainer, replays=replays)
                rows.append({"prompt_length": prompt_length, "trainer": trainer, "replay": replays} | found)
                show(rows[-1])
        engine.close()
    return rows


def show(row: dict[str, Any]) -> None:
    print(
        f"prompt of {row['prompt_length']:>2}, trainer in {row['trainer']:<9}"
        f" {'replays vLLM:' if row['replay'] else 'chooses:':<14}"
        f" agreement {row['mismatch/router_agreement']:.4f}, overlap {row['mismatch/router_overlap']:.4f},"
        f" log-probs differ by {row['mismatch/logprob_abs_diff']:.2e} on average,"
        f" {row['mismatch/logprob_abs_diff_max']:.2e} at most",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--responses", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(options)
    if options.json is not None:
        asked = {name: value for name, value in vars(options).items() if name != "json"}
        found = {"vllm_version": installed_version(), "model": SHAPE, "settings": asked, "results": rows}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
