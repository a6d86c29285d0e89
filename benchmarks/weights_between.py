"""Weights between two training ranks and two engines of two ranks: bytes of each receiver, and hidden publishes.

    python benchmarks/weights_between.py --json benchmarks/results/weights_between.json
    python benchmarks/weights_between.py --runs vllm --json ...      where vLLM is installed: also whole runs with it

* slices:    two real training workers (FSDP2) and four receivers, each a process, with the holdings of two engines with
             `tensor_parallel_size` 2. Each pulls every version. Bytes that it fetched beside the bytes of its slices;
             every element is compared with the checkpoint.
* runs:      whole runs of `tailrace train` with two training ranks and two instances, whose responses are so short that
             a batch is ready when a step ends. From the journal: when each version was published, and when the next
             step added up its gradients. `native` has one rank per instance, `vllm` two.

Each is done with weights in shared memory and through torch.distributed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import weights_overlap
from transformers import LlamaConfig, LlamaForCausalLM
from weights_receiver import Fetch, ReceiverInit

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.core.ids import Version
from tailrace.data.models import resolve_model
from tailrace.engines.vllm.layout import engine_layout, model_parameters
from tailrace.runtime.launchers.process import ProcessLauncher
from tailrace.runtime.launchers.worker import Launcher, WorkerSpec
from tailrace.runtime.launchers.worker_group import WorkerGroup
from tailrace.weights.sharding.table import Holding, Parameter
from tailrace.workers.messages import ModelInit, Publish, Published, Pull, TrainingInit, TrainingReady

NUM_ENGINES = NUM_ENGINE_RANKS = NUM_TRAINING_RANKS = 2
CHANNELS = ("shared-memory", "collective")
WAIT_LIMIT_S = 300.0


def save_model(folder: Path, *, hidden: int, layers: int) -> Path:
    """A random Llama that vLLM runs on CPUs, with the tokenizer of tiny-arith."""
    config = LlamaConfig(
        vocab_size=19,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(resolve_model("tiny-arith") / name, folder)
    return folder


class Mailbox:
    """What a worker says. If it ends, whoever waits is told why."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[object] = asyncio.Queue()

    def hear(self, message: object) -> None:
        self._messages.put_nowait(message)

    def lose(self, reason: str) -> None:
        self._messages.put_nowait(RuntimeError(reason))

    async def next(self, kind: type[Any]) -> Any:
        message = await asyncio.wait_for(self._messages.get(), WAIT_LIMIT_S)
        if isinstance(message, RuntimeError):
            raise message
        assert isinstance(message, kind), message
        return message


def training_init(model: Path, channel: str, rank: int) -> TrainingInit:
    policy = ModelInit(
        name="policy",
        model_path=model,
        checkpoint=None,
        model=ModelSettings(device="cpu"),
        trainer=TrainerSettings(num_ranks=NUM_TRAINING_RANKS, threads=1, weight_channel=channel),  # type: ignore[arg-type]
        algorithm=AlgorithmSettings(),
        temperature=1.0,
        max_response_length=8,
        max_steps=1,
        seed=0,
        channel_name=f"between-{os.getpid()}",
    )
    return TrainingInit(models=(policy,), rank=rank, num_shards=NUM_TRAINING_RANKS)


async def slices(
    model: Path, channel: str, *, num_versions: int, logs: Path, launch_receiver: Launcher
) -> dict[str, Any]:
    """Publish versions, and let every receiver pull each."""
    said = Mailbox()
    training = WorkerGroup.start(
        [
            WorkerSpec(
                name=f"training-{rank}",
                entry="tailrace.workers.training_worker:serve",
                init=training_init(model, channel, rank),
            )
            for rank in range(NUM_TRAINING_RANKS)
        ],
        ProcessLauncher(logs),
        hear=said.hear,
        lose=said.lose,
    )
    parameters = model_parameters(model, torch.float32)
    receivers = start_receivers(launch_receiver, model, parameters)
    ready: TrainingReady = await said.next(TrainingReady)
    address = ready.models[0].channel
    assert address is not None
    publish_s, fetches = [], {name: list[Fetch]() for name in receivers}
    for version in map(Version, range(num_versions)):
        training.send(Publish(model="policy", version=version))
        publish_s.append((await said.next(Published)).seconds)
        for _, worker, _ in receivers.values():
            worker.send(Pull(version=version, channel=address))
        for name, (mailbox, _, _) in receivers.items():
            fetches[name].append(await mailbox.next(Fetch))
    await asyncio.gather(training.stop(2.0), *(worker.stop(2.0) for _, worker, _ in receivers.values()))
    rows = {name: row(fetches[name], holding, parameters) for name, (_, _, holding) in receivers.items()}
    model_bytes = sum(parameter.num_bytes(parameter.box) for parameter in parameters)
    return {"model_bytes": model_bytes, "publish_s": [round(s, 4) for s in publish_s], "receivers": rows}


def start_receivers(launch: Launcher, model: Path, parameters: list[Parameter]) -> dict[str, Any]:
    found = {}
    for engine in range(NUM_ENGINES):
        for rank, holding in enumerate(engine_layout(model, parameters, NUM_ENGINE_RANKS)):
            name, mailbox = f"engine-{engine}-rank-{rank}", Mailbox()
            init = ReceiverInit(holding=holding, checkpoint=model)
            spec = WorkerSpec(name=name, entry="weights_receiver:serve", init=init)
            found[name] = (mailbox, launch(spec, hear=mailbox.hear, lose=mailbox.lose), holding)
    return found


def row(fetches: list[Fetch], holding: Holding, parameters: list[Parameter]) -> dict[str, Any]:
    by_name = {parameter.name: parameter for parameter in parameters}
    return {
        "slices_bytes": sum(by_name[piece.parameter].num_bytes(piece.box) for piece in holding.pieces),
        "fetched_bytes": [fetch.num_bytes for fetch in fetches],
        "by_sender": fetches[-1].by_sender,
        "versions": [int(fetch.version) for fetch in fetches],
        "is_right": all(fetch.is_right for fetch in fetches),
        "pull_s": [round(fetch.seconds, 4) for fetch in fetches],
    }


def whole_run(engine: str, channel: str, model: Path, folder: Path, num_steps: int) -> dict[str, Any]:
    settings = {
        "rollout.engine": engine,
        "rollout.num_instances": NUM_ENGINES,
        "rollout.tensor_parallel_size": NUM_ENGINE_RANKS if engine == "vllm" else 1,
        "rollout.n_samples_per_prompt": 8,
        "rollout.max_response_length": 4,  # rollout is faster than training, so a batch is ready when a step ends
        "rollout.max_running": 128,
        "rollout.threads": 1,
        "trainer.threads": 1,
        "trainer.num_ranks": NUM_TRAINING_RANKS,
        "trainer.weight_channel": channel,
        "schedule.placement": "disaggregated",
        "schedule.preset": "one-step",
        "schedule.rollout_batch_size": 32,
        "schedule.max_steps": num_steps,
        "eval": "[]",
        "eval_interval": "null",
        "save_interval": "null",
    }
    output = folder / f"{engine}-{channel}"
    start = time.monotonic()
    weights_overlap.run(output, model, settings)
    return {"seconds": round(time.monotonic() - start, 1), **weights_overlap.found(output)}


def show(result: dict[str, Any]) -> None:
    for channel, found in result["slices"].items():
        print(f"{channel}: model {found['model_bytes']:,} bytes, publish {found['publish_s']} s")
        for name, each in found["receivers"].items():
            fetched = ", ".join(f"{size:,}" for size in each["fetched_bytes"])
            print(f"  {name}: slices {each['slices_bytes']:,}, fetched {fetched}; from {each['by_sender']}")
    for name, found in result["runs"].items():
        print(
            f"{name}: {found['beside_the_next_step']} of {found['publishes']} publishes beside the next step,"
            f" {found['hidden_s']} of {found['publish_s_beside']} s hidden, next step waited"
            f" {found['next_step_waited_s']} s; bytes per pull {found['bytes_per_pull']}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--versions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=512, help="width of the model, a multiple of 128")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument(
        "--runs", nargs="*", default=["native"], help="engines of whole runs: native, vllm; may be none"
    )
    parser.add_argument("--channels", nargs="+", default=CHANNELS, choices=CHANNELS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-between-") as name:
        folder = Path(name)
        model = save_model(folder / "model", hidden=options.hidden, layers=options.layers)
        result: dict[str, Any] = {
            "slices": {
                channel: asyncio.run(
                    slices(
                        model,
                        channel,
                        num_versions=options.versions,
                        logs=folder / "logs",
                        launch_receiver=ProcessLauncher(folder / "logs"),
                    )
                )
                for channel in options.channels
            },
            "runs": {
                f"{engine}, {channel}": whole_run(engine, channel, model, folder, options.steps)
                for engine in options.runs
                for channel in options.channels
            },
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        }
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
