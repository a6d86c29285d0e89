"""One optimizer step per batch, given in one piece or in several.

``accumulate`` adds the gradients of unnormalised loss sums; ``finish_step`` divides them once by the denominator of
the whole batch, clips, steps and counts the new version. ``train`` is ``accumulate`` then ``finish_step``: there is
no second path, so a batch that comes in pieces has the gradient of the same batch given whole. Between pieces the
gradients may wait on the host (``optimizer/gradients.py``), and the reference model may lie there
(``model/reference.py``).

A step whose log-probs or gradient are not finite is refused: ``FloatingPointError``, weights, optimizer and version
as before. On CPU the same inputs on the same number of threads give the same weights, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.config.variants import ESTIMATORS
from tailrace.core.ids import Version
from tailrace.store.segment import Logprobs
from tailrace.trainer.batch import Sample, in_groups
from tailrace.trainer.checkpoints import checkpoint
from tailrace.trainer.model import lora, reference
from tailrace.trainer.model.collate import MicroBatch
from tailrace.trainer.model.model_files import load_model, open_model, resolve_device
from tailrace.trainer.model.network import Network
from tailrace.trainer.optimizer import optimizer
from tailrace.trainer.optimizer.gradients import Gradients, gradients_of
from tailrace.trainer.optimizer.learning_rate import learning_rate
from tailrace.trainer.ranks.ranks import ALONE, Ranks
from tailrace.trainer.step import blame, dispatch, loss_rules
from tailrace.trainer.step.critic import Critic
from tailrace.trainer.step.device_memory import take_peak
from tailrace.trainer.step.dispatch import Judged
from tailrace.trainer.step.micro_batches import MicroBatches
from tailrace.trainer.step.objective import objective
from tailrace.trainer.step.overlong import Overlong
from tailrace.trainer.step.stale import mask_stale
from tailrace.trainer.step.totals import Totals


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    version: Version
    metrics: dict[str, float]


class Trainer:
    """Owns the master weights (fp32), the optimizer and the version."""

    def __init__(
        self,
        model_path: Path,
        *,
        model: ModelSettings,
        settings: TrainerSettings,
        algorithm: AlgorithmSettings,
        temperature: float,
        max_steps: int,
        seed: int,
        max_response_length: int | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """``ranks``: this process and the others that train the model with it."""
        loss_rules.refuse_contradictions(algorithm)
        torch.manual_seed(seed)
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        device = resolve_device(model.device)
        autocast = torch.bfloat16 if device.type == "cuda" and model.dtype == "bfloat16" else None
        self.version = Version(0)
        self._ranks = ranks
        self._source = model_path
        self._settings, self._algorithm, self._max_steps = settings, algorithm, max_steps
        self._rollout_dtype = getattr(torch, model.dtype)
        load = open_model if ranks.size > 1 else partial(load_model, device=device)
        self.model = load(model_path, gradient_checkpointing=settings.gradient_checkpointing)
        self._micro_batches = MicroBatches(self.model, device=device, autocast=autocast, settings=settings, ranks=ranks)
        self.adapter = lora.attach(self.model, model, model_path)
        network = partial(Network, temperature=temperature, autocast=autocast, ranks=ranks)
        self._network = network(self.model, replays_routing=settings.replay_routing, is_compiled=settings.torch_compile)
        self.reference_model = None
        self._reference = None
        if algorithm.kl_loss_coef > 0 and self.adapter is None:
            if settings.reference_device == "cpu":  # each rank has all of it on its host
                self._reference = network(reference.load(model_path, device), ranks=ALONE)
            else:
                self._reference = network(load(model_path).requires_grad_(False))
            self.reference_model = self._reference.model
        self._gradients = gradients_of(self.model, settings, ranks)
        adamw = partial(optimizer.adamw, settings=settings, learning_rate=settings.learning_rate)
        self._optimizer = adamw(self.model, gradients=self._gradients)
        self.critic = None
        if ESTIMATORS[algorithm.advantage_estimator].needs_critic:
            body = load(model_path, gradient_checkpointing=settings.gradient_checkpointing)
            lora.attach(body, model, model_path)  # where the policy learns by an adapter, so does the critic
            self.critic = Critic(body, settings=settings, algorithm=algorithm, autocast=autocast, ranks=ranks)
        self._max_response_length = max_response_length
        self._overlong = self._bind(algorithm)
        self._puts_off = settings.reduce_gradients == "last" and ranks.size > 1
        ranks.put_off(self._puts_off)
        self._last_sample: Sample | None = None
        """One that ranks of this replica have computed a gradient for in this step."""
        self._totals = Totals()
        self._step_loss: AlgorithmSettings | None = None
        """Loss settings of the step's first groups; None: the step has not begun."""
        self._identity = checkpoint.identity(
            model=model, settings=settings, algorithm=algorithm, temperature=temperature, max_steps=max_steps, seed=seed
        )

    def train(self, groups: Sequence[Sequence[Sample]]) -> StepResult:
        self.accumulate(groups)
        return self.finish_step()

    def accumulate(
        self,
        groups: Sequence[Sequence[Sample]],
        loss: AlgorithmSettings | None = None,
        *,
        replicas: Sequence[int] | None = None,
    ) -> None:
        """Add whole groups to the current step. ``loss``: other settings than those the trainer was made with.
        ``replicas``: those that compute; default: all. The others do nothing."""
        algorithm = self._algorithm if loss is None else loss
        if algorithm != self._algorithm:
            loss_rules.refuse_unfit(algorithm, self._algorithm)
        overlong = self._overlong if algorithm is self._algorithm else self._bind(algorithm)
        samples, advantage_of = self._judge(groups, algorithm, overlong)
        has_gradient = [
            not overlong.drops(sample) and self._has_gradient(advantage, algorithm)
            for sample, advantage in zip(samples, advantage_of, strict=True)
        ]
        for learn in (True, False):
            chosen = [index for index in range(len(samples)) if has_gradient[index] == learn]
            for micro, _ in self._micro_batches.of(samples, advantage_of, chosen, self.version, replicas):
                for gradients in self._all_gradients() if learn else ():
                    gradients.begin_piece()
                self._accumulate_one(micro, algorithm, learn=learn)
                self._last_sample = micro.samples[0] if learn else self._last_sample
        for gradients in self._all_gradients():
            gradients.end_piece()

    def finish_step(
        self, settings: TrainerSettings | None = None, rates: Mapping[str, float] | None = None
    ) -> StepResult:
        """Divide, clip, step. A batch without a single loss token leaves the weights unchanged but still makes a
        new version.

        ``settings``: for this step, other settings of the optimizer than those the trainer was made with. ``rates``:
        learning rates of ``actor`` and ``critic``, if this step was taken before; default: those of the settings.
        """
        settings = settings or self._settings
        totals = self._totals.merged(self._ranks)
        self._add_up_gradients()
        if not totals.groups:
            raise ValueError(f"step {self.version} has no groups to train on")
        try:
            applied = self._apply(totals, settings, rates or self._rates(settings))
        finally:
            self.drop_step()
        self.version = Version(self.version + 1)
        peak = take_peak(self._network.device)
        return StepResult(version=self.version, metrics=totals.metrics() | applied | peak)

    def _add_up_gradients(self) -> None:
        """Add up the gradients that ranks have held back. They do it in a backward pass: each runs one over an empty
        micro-batch."""
        if not self._puts_off or self._last_sample is None:
            return
        self._ranks.put_off(False)
        self._accumulate_one(
            self._micro_batches.idle(self._last_sample), self._step_loss or self._algorithm, learn=True
        )
        self._ranks.put_off(True)

    def drop_step(self) -> None:
        """Drop the accumulated gradients."""
        self._totals, self._step_loss, self._last_sample = Totals(), None, None
        self._ranks.forget_gradients()
        for gradients in self._all_gradients():
            gradients.forget()

    def _all_gradients(self) -> list[Gradients]:
        return [self._gradients] if self.critic is None else [self._gradients, self.critic.gradients]

    @torch.no_grad()
    def forward(self, samples: Sequence[Sample]) -> list[Logprobs]:
        """Return the log-probs of the tokens of each response under the current weights."""
        found: list[Logprobs] = [np.empty(0, np.float32) for _ in samples]
        for micro, members in self._micro_batches.of(samples, [0.0] * len(samples), range(len(samples)), self.version):
            logprobs_BT = micro.spread(self._network.score(micro).logprobs_N).float().cpu().numpy()
            for index, logprobs_T in zip(members, logprobs_BT, strict=True):
                found[index] = logprobs_T[: len(samples[index].response)]
        return found

    def named_weights(self, *, is_whole: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Weights under their Hugging Face names, tied ones once, in the rollout's precision and a fixed order.

        With an adapter, those of the adapted model. All ranks of a replica go through them together. ``is_whole``: if
        not, only names, shapes and types are right, and a rank can ask for them by itself.

        The tensors are collected by the call, which belongs in the thread that trains, between forward passes: FSDP2
        shards the model again to list them. Another thread may go through the result while this one computes.
        """
        held = {name: tensor.detach() for name, tensor in _untied(self.model.state_dict(keep_vars=True))}
        prepared: Iterator[tuple[str, Tensor]] = self._prepared(held, is_whole=is_whole)
        return prepared

    @torch.no_grad()
    def _prepared(self, held: Mapping[str, Tensor], *, is_whole: bool) -> Iterator[tuple[str, Tensor]]:
        """Tensors of the model as the rollout gets them. Each is computed when it is asked for."""
        whole = self._ranks.whole if is_whole else _unchanged
        weights: Iterable[tuple[str, Tensor]] = held.items()
        if self.adapter is not None:
            weights = self.adapter.merged(held, whole if is_whole else None)
        for name, tensor in weights:
            yield name, whole(tensor.to(self._rollout_dtype) if tensor.is_floating_point() else tensor)

    def save(self, directory: Path) -> None:
        """Write a checkpoint between two steps, all ranks together. The caller renames the directory into place."""
        if self._totals.groups:
            raise ValueError(f"step {self.version} has begun; a checkpoint is written between steps")
        checkpoint.save(
            directory,
            model=self.model,
            adapter=self.adapter,
            optimizer=self._optimizer,
            critic=self.critic,
            version=self.version,
            identity=self._identity,
            source=self._source,
            ranks=self._ranks,
        )

    def load(self, directory: Path) -> None:
        """Continue from a checkpoint exactly where it was written."""
        self.version = checkpoint.load(
            directory,
            model=self.model,
            adapter=self.adapter,
            optimizer=self._optimizer,
            critic=self.critic,
            identity=self._identity,
            ranks=self._ranks,
        )
        self.drop_step()

    def _bind(self, algorithm: AlgorithmSettings) -> Overlong:
        return Overlong(algorithm.overlong, max_response_length=self._max_response_length)

    def _judge(
        self, groups: Sequence[Sequence[Sample]], algorithm: AlgorithmSettings, overlong: Overlong
    ) -> tuple[list[Sample], list[float]]:
        """Samples in training order, as they are trained, with their advantages."""
        ordered = mask_stale(in_groups(sample for group in groups for sample in group), self.version, algorithm)
        given = [sample for group in ordered for sample in group]
        if len({sample.response_id for sample in given}) != len(given):
            raise ValueError(f"step {self.version} was given a response twice")
        if self._step_loss is not None:
            loss_rules.refuse_mixture(algorithm, self._step_loss, self.version)
        self._totals.add_groups(ordered)
        if self._ranks.index == 0:  # the others have the same
            self._totals.add_sums(overlong.sums(given))
        self._step_loss = self._step_loss or algorithm
        samples = overlong.apply(given)
        judged = Judged(
            scores_B=torch.tensor([sample.score for sample in samples], dtype=torch.float64),
            group_B=torch.tensor([number for number, group in enumerate(ordered) for _ in group], dtype=torch.int64),
            num_tokens_B=torch.tensor([sample.num_loss_tokens for sample in samples], dtype=torch.float64),
        )
        return samples, dispatch.judge(judged, algorithm).tolist()

    def _has_gradient(self, advantage: float, algorithm: AlgorithmSettings) -> bool:
        """Whether a response has a gradient. Without advantage, KL term and critic it has none, and is scored only for
        the metrics."""
        return advantage != 0.0 or algorithm.kl_loss_coef > 0 or self.critic is not None

    def _accumulate_one(self, micro: MicroBatch, algorithm: AlgorithmSettings, *, learn: bool) -> None:
        reference_BT = self._score_reference(micro) if algorithm.kl_loss_coef > 0 else None
        # For passes without gradients torch would compile the layers a second time.
        with torch.set_grad_enabled(learn or self._settings.torch_compile):
            advantages_BT = self._criticize(micro, learn=learn) if self.critic else micro.advantages_B[:, None]
            scores = self._network.score(micro)
            logprobs_BT, entropy_BT = micro.spread(scores.logprobs_N), micro.spread(scores.entropy_N)
            found = objective(micro, advantages_BT, logprobs_BT, entropy_BT, reference_BT, algorithm)
        if learn:
            found.loss.backward()
        self._totals.add(micro, found, logprobs_BT)
        self._totals.add_sums(self._network.routers.sums(micro))

    @torch.no_grad()
    def _score_reference(self, micro: MicroBatch) -> Tensor:
        """Return log-probs under the starting model: a separate copy, or the trained model with its adapter off."""
        if self.adapter is None:
            assert self._reference is not None
            return micro.spread(self._reference.score(micro, watches_routing=False).logprobs_N)
        with self.adapter.off():
            return micro.spread(self._network.score(micro, watches_routing=False).logprobs_N)

    def _criticize(self, micro: MicroBatch, *, learn: bool) -> Tensor:
        """Return the advantage of each token. If ``learn``, also add the critic's gradients."""
        assert self.critic is not None
        found = self.critic.criticize(micro)
        if learn:
            found.loss.backward()
        self._totals.add_sums(found.sums)
        return found.advantages_BT

    def _broken(self, totals: Totals) -> str:
        """Names of the responses that cannot be trained; empty: none."""
        if self._ranks.size > 1:  # to score each by itself, all ranks would have to take part
            return blame.listed(sorted(totals.broken))
        suspects = totals.not_finite()
        return blame.names(self._network, suspects) if suspects else ""

    def _rates(self, settings: TrainerSettings) -> dict[str, float]:
        rate = learning_rate(self.version, settings, max_steps=self._max_steps)
        return {"actor": rate, "critic": rate * self._algorithm.critic_learning_rate / settings.learning_rate}

    def _apply(self, totals: Totals, settings: TrainerSettings, rates: Mapping[str, float]) -> dict[str, float]:
        """Take the optimizer step of policy and critic, or of neither. Return gradient norms and learning rates."""
        if names := self._broken(totals):
            raise FloatingPointError(f"step {self.version}: log-probs are not finite for {names}")
        clip = partial(self._clip, denominator=totals.denominator(), max_grad_norm=settings.max_grad_norm)
        found = {"actor/grad_norm": clip("actor", self.model, self._gradients), "actor/lr": rates["actor"]}
        optimizers = [(self._optimizer, rates["actor"])]
        if self.critic is not None:
            norm = clip("critic", self.critic.model, self.critic.gradients)
            found |= {"critic/grad_norm": norm, "critic/lr": rates["critic"]}
            optimizers.append((self.critic.optimizer, rates["critic"]))
        if totals.denominator():
            for its_optimizer, its_rate in optimizers:
                optimizer.step(its_optimizer, settings, learning_rate=its_rate)
        return found

    def _clip(
        self, name: str, model: nn.Module, gradients: Gradients, *, denominator: float, max_grad_norm: float
    ) -> float:
        """Average and clip the gradient of all ranks. Return its norm before clipping."""
        gradients.begin_step()
        self._ranks.add_up(model, gradients)
        grad_norm = optimizer.average_and_clip(gradients, denominator=denominator, max_grad_norm=max_grad_norm)
        if not math.isfinite(grad_norm):
            raise FloatingPointError(f"step {self.version}: the norm of the {name}'s gradient is {grad_norm}")
        return grad_norm


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _untied(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Return each tensor once, under its first name."""
    seen: set[int] = set()
    for name, tensor in weights.items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor
