"""The table of references: what each advantage, loss, correction and term is held against.

Every row names the publication whose formula, in plain Python (``formulas.py``), gives the expected numbers; where TRL
has the same thing, also TRL's settings for it. ``test_references.py`` compares all rows with what the trainer calls;
``test_against_trl.py`` those that name TRL with TRL itself.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from algorithms import formulas
from algorithms.formulas import Tokens
from tailrace.config.variants import CorrectionName, EstimatorName, LossName

Kind = Literal["advantage", "loss", "correction", "term"]

_rng = random.Random(3)
SCORES = [1.0, 0.0, 0.5, 3.0, -2.0, 0.25, 0.75]
GROUPS = [0, 1, 0, 1, 0, 2, 2]
MASK = [[int(bit) for bit in row] for row in ("10110", "11000", "11111", "01100", "10000", "11110", "11101")]
ADVANTAGES = [0.7, -1.2, 0.4, -0.3, 1.5, -2.0, 0.0]


def _draw(low: float, high: float) -> list[list[float]]:
    return [[_rng.uniform(low, high) for _ in row] for row in MASK]


NEW = _draw(-3.0, -0.1)
OLD = [[value + _rng.uniform(-1.2, 1.2) for value in row] for row in NEW]
BEHAVIOUR = [[value + _rng.uniform(-0.8, 0.8) for value in row] for row in OLD]
VALUES = _draw(-1.0, 1.0)
RETURNS = _draw(-1.0, 1.0)
LENGTHS = list(range(1, 61))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    kind: Kind
    name: EstimatorName | LossName | CorrectionName | str
    """As in the settings."""
    source: str
    """The publication of the formula."""
    expected: Callable[[], Iterable[float]]
    """By that formula; masked tokens are left out."""
    settings: dict[str, object] = field(default_factory=dict)
    """Of the algorithm, beside the name."""
    trl: str | None = None
    """Where TRL has it."""

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.settings.items())])


def _masked(rows: list[list[float]]) -> list[Tokens]:
    """None where a token is masked."""
    return [
        [value if bit else None for value, bit in zip(row, bits, strict=True)]
        for row, bits in zip(rows, MASK, strict=True)
    ]


def _per_token(formula: Callable[[float, float, float], float]) -> Callable[[], list[float]]:
    """A loss of new and old log-prob and advantage, at every loss token."""

    def expected() -> list[float]:
        rows = zip(_masked(NEW), _masked(OLD), ADVANTAGES, strict=True)
        return [formula(n, o, A) for new, old, A in rows for n, o in zip(*map(formulas.kept, (new, old)), strict=True)]

    return expected


def _gspo() -> list[float]:
    rows = zip(_masked(NEW), _masked(OLD), ADVANTAGES, strict=True)
    return [
        formulas.gspo(new, old, A, low=0.1, high=0.15) for new, old, A in rows for _ in range(len(formulas.kept(new)))
    ]


def _weights(
    formula: Callable[[list[float], float, float], list[float]], low: float, high: float
) -> Callable[[], list[float]]:
    def expected() -> list[float]:
        found = []
        for old, behaviour in zip(_masked(OLD), _masked(BEHAVIOUR), strict=True):
            pairs = zip(formulas.kept(old), formulas.kept(behaviour), strict=True)
            found += formula([math.exp(o) / math.exp(b) for o, b in pairs], low, high)
        return found

    return expected


def _gae() -> list[float]:
    rows = zip(SCORES, _masked(VALUES), strict=True)
    return [A for score, values in rows for A in formulas.gae(score, values, gamma=0.95, lam=0.9)]


def _value_loss() -> list[float]:
    rows = zip(_masked(VALUES), _masked(RETURNS), strict=True)
    return [
        formulas.value_loss(value, target)
        for row in rows
        for value, target in zip(*map(formulas.kept, row), strict=True)
    ]


NUM_TOKENS = [sum(row) for row in MASK]
_PPO = "Schulman et al., Proximal Policy Optimization Algorithms"
_TRL = "GRPOTrainer, "

REFERENCES = [
    Reference(
        kind="advantage",
        name="grpo",
        source="Shao et al., DeepSeekMath",
        expected=lambda: formulas.grpo(SCORES, GROUPS, epsilon=1e-6),
        trl=_TRL + "scale_rewards='group' (whose epsilon is 1e-4)",
    ),
    Reference(
        kind="advantage",
        name="grpo",
        settings={"normalize_by_std": False},
        source="Liu et al., Understanding R1-Zero-Like Training",
        expected=lambda: formulas.dr_grpo(SCORES, GROUPS),
        trl=_TRL + "scale_rewards='none'",
    ),
    Reference(
        kind="advantage",
        name="dr_grpo",
        source="Liu et al., Understanding R1-Zero-Like Training",
        expected=lambda: formulas.dr_grpo(SCORES, GROUPS),
        trl=_TRL + "scale_rewards='none'",
    ),
    Reference(
        kind="advantage",
        name="rloo",
        source="Ahmadian et al., Back to Basics",
        expected=lambda: formulas.rloo(SCORES, GROUPS),
        trl="RLOOTrainer, normalize_advantages=False",
    ),
    Reference(
        kind="advantage",
        name="reinforce++",
        source="Hu et al., REINFORCE++",
        expected=lambda: formulas.whitened(SCORES, NUM_TOKENS, epsilon=1e-8),
    ),
    Reference(
        kind="advantage",
        name="reinforce++-baseline",
        source="Hu et al., REINFORCE++ (with the group's mean as baseline)",
        expected=lambda: formulas.whitened(formulas.dr_grpo(SCORES, GROUPS), NUM_TOKENS, epsilon=1e-8),
    ),
    Reference(
        kind="advantage",
        name="gae",
        settings={"gamma": 0.95, "lam": 0.9},
        source="Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation",
        expected=_gae,
    ),
    Reference(
        kind="loss",
        name="ppo",
        settings={"clip_ratio_low": 0.2, "clip_ratio_high": 0.2},
        source=_PPO,
        expected=_per_token(lambda new, old, A: formulas.ppo(new, old, A, low=0.2, high=0.2)),
        trl=_TRL + "loss_type 'grpo', 'bnpo', 'dapo'",
    ),
    Reference(
        kind="loss",
        name="ppo",
        source=_PPO + "; clip-higher: Yu et al., DAPO",
        expected=_per_token(lambda new, old, A: formulas.ppo(new, old, A, low=0.2, high=0.28)),
        trl=_TRL + "epsilon_high",
    ),
    Reference(
        kind="loss",
        name="ppo",
        settings={"clip_ratio_c": 1.5},
        source=_PPO + "; dual clip: Ye et al., Mastering Complex Control in MOBA Games",
        expected=_per_token(lambda new, old, A: formulas.ppo(new, old, A, low=0.2, high=0.28, dual=1.5)),
        trl=_TRL + "delta",
    ),
    Reference(
        kind="loss",
        name="gspo",
        settings={"clip_ratio_low": 0.1, "clip_ratio_high": 0.15},
        source="Zheng et al., Group Sequence Policy Optimization",
        expected=_gspo,
        trl=_TRL + "importance_sampling_level='sequence'",
    ),
    Reference(
        kind="loss",
        name="cispo",
        settings={"clip_ratio_low": 0.4, "clip_ratio_high": 0.5},
        source="MiniMax-M1",
        expected=_per_token(lambda new, old, A: formulas.cispo(new, old, A, low=0.4, high=0.5)),
        trl=_TRL + "loss_type 'cispo' (which has no floor)",
    ),
    Reference(
        kind="loss",
        name="sapo",
        settings={"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.4},
        source="Soft Adaptive Policy Optimization",
        expected=_per_token(lambda new, old, A: formulas.sapo(new, old, A, positive=1.0, negative=1.4)),
        trl=_TRL + "loss_type 'sapo'",
    ),
    Reference(
        kind="correction",
        name="none",
        source="a weight of 1",
        expected=lambda: [1.0] * sum(NUM_TOKENS),
    ),
    Reference(
        kind="correction",
        name="tis",
        settings={"clip_low": 0.6, "clip_high": 1.4},
        source="Yao et al., Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
        expected=_weights(formulas.token_truncated, 0.6, 1.4),
        trl=_TRL + "vllm_importance_sampling_mode 'token_truncate'",
    ),
    Reference(
        kind="correction",
        name="seq_tis",
        settings={"clip_low": 0.6, "clip_high": 1.4},
        source="the same, of whole responses",
        expected=_weights(formulas.sequence_truncated, 0.6, 1.4),
        trl=_TRL + "'sequence_truncate'",
    ),
    Reference(
        kind="correction",
        name="icepop",
        settings={"clip_low": 0.6, "clip_high": 1.4},
        source="Ling team, IcePop",
        expected=_weights(formulas.token_masked, 0.6, 1.4),
        trl=_TRL + "'token_mask'",
    ),
    Reference(
        kind="correction",
        name="geo_mask",
        settings={"clip_low": 0.9, "clip_high": 1.2},
        source="a response's ratio as in Group Sequence Policy Optimization, in range or not",
        expected=_weights(formulas.sequence_masked, 0.9, 1.2),
    ),
    Reference(
        kind="correction",
        name="decoupled",
        settings={"clip_high": 1.4},
        source="Hilton et al., Batch Size-Invariance for Policy Optimization",
        expected=_weights(formulas.token_masked, 0.0, 1.4),
        trl=_TRL + "'token_mask' without a lower bound",
    ),
    Reference(
        kind="term",
        name="k3",
        source="Schulman, Approximating KL Divergence",
        expected=_per_token(lambda new, old, A: formulas.k3(new, old)),
        trl=_TRL + "beta",
    ),
    Reference(kind="term", name="value loss", source=_PPO + ", its critic's loss", expected=_value_loss),
    Reference(
        kind="term",
        name="token-mean",
        source="Yu et al., DAPO",
        expected=lambda: [formulas.token_mean(_masked(NEW))],
        trl=_TRL + "loss_type 'bnpo', 'dapo'",
    ),
    Reference(
        kind="term",
        name="seq-mean-token-mean",
        source="Shao et al., DeepSeekMath",
        expected=lambda: [formulas.seq_mean_token_mean(_masked(NEW))],
        trl=_TRL + "loss_type 'grpo'",
    ),
    Reference(
        kind="term",
        name="seq-mean-token-sum",
        source="Liu et al., Understanding R1-Zero-Like Training",
        expected=lambda: [formulas.seq_mean_token_sum(_masked(NEW))],
    ),
    Reference(
        kind="term",
        name="overlong penalty",
        source="Yu et al., DAPO",
        expected=lambda: [formulas.overlong(length, longest=50, buffer=20) for length in LENGTHS],
        trl="trl.rewards.get_soft_overlong_punishment",
    ),
]
