"""Log-probs in bfloat16, by one process or by one of two ranks: ``half_precision.py MODEL STORE INDEX FOUND``.

On a CPU, where the trainer itself computes in fp32.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.store.segment import ResponsePayload
from tailrace.trainer.batch import Sample
from tailrace.trainer.model.collate import MicroBatch, collate
from tailrace.trainer.model.model_files import load_model
from tailrace.trainer.model.network import Network
from tailrace.trainer.ranks.process_ranks import ProcessRanks
from tailrace.trainer.ranks.ranks import ALONE, Ranks

CPU = torch.device("cpu")
NUM_TOKENS = 64


def batch(vocabulary: int) -> MicroBatch:
    tokens = np.random.default_rng(0).integers(0, vocabulary, NUM_TOKENS).astype(np.int32)
    response_id = ResponseId(GroupId("train", 0, 0), 0)
    logprobs = np.zeros(NUM_TOKENS, np.float32)
    response = ResponsePayload(
        response_id=response_id,
        tokens=tokens,
        logprobs=logprobs,
        behaviour_logprobs=logprobs,
        mask=np.ones(NUM_TOKENS, np.uint8),
        versions=((Version(0), NUM_TOKENS),),
    )
    sample = Sample(response_id=response_id, prompt=np.array([1, 2], np.int32), response=response, score=1.0)
    return collate([sample], [0.0], Version(0), CPU)


def logprobs(model_path: Path, dtype: torch.dtype | None, *, ranks: Ranks = ALONE, is_rounded: bool = False):  # type: ignore[no-untyped-def]
    """Log-probs of random tokens, and the gradient of their sum by the embedding."""
    torch.set_num_threads(1)
    model = load_model(model_path, device=CPU)
    if is_rounded:
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16().float()
    micro = batch(model.config.vocab_size)
    found = Network(model, temperature=1.0, autocast=dtype, ranks=ranks).score(micro).logprobs_N
    found.sum().backward()
    gradient = model.get_input_embeddings().weight.grad
    whole = gradient if ranks is ALONE else gradient.full_tensor()
    return found.detach(), whole


if __name__ == "__main__":
    path, store, index, file = sys.argv[1:]
    ranks = ProcessRanks(dist.FileStore(store, 2), index=int(index), num_shards=2, num_replicas=1, device=CPU)
    torch.save(logprobs(Path(path), torch.bfloat16, ranks=ranks), file)
    ranks.close()
