"""A causal model over a tree of tokens: every distinct prefix is computed once.

U nodes of a prefix tree, B rows of Q queries and L keys, D hidden width.

Embeddings, projections and MLPs see each node once, side by side without padding. Only attention needs sequences: it
sees *rows*, one per leaf of the tree. A row's keys are the way from the root to the leaf. Its queries are the same, or
where most of the way is known from other rows only the rest of it. What attention finds at a node is taken from one of
the rows that ask for it; it is the same in all of them.

Rows are padded on the right. Where queries and keys are the same no attention mask is used: in a causal model no token
sees what stands after it, so padding cannot reach a real token, and the fast causal kernels apply. On CUDA in bfloat16
rows lie side by side instead, without padding.

A model whose attention cannot be replaced, or whose layers look at neighbours in another way (sliding windows,
convolutions, recurrence), gets whole rows instead: the same result, every prefix computed as often as it occurs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch.fx.experimental._config as fx_config
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_layers import GradientCheckpointingLayer

from tailrace.algorithms import packing, prefix_tree
from tailrace.algorithms.prefix_tree import PrefixTree
from tailrace.devices.upload import upload
from tailrace.trainer.model import varlen
from tailrace.trainer.model.packed_rows import PackedRows

Nodes = NDArray[np.int64]

TREE_ATTENTION = "tailrace_tree"

BLOCK_OVERHEAD = {"cpu": 2**12, "cuda": 2**22}
"""What one more block of rows costs a layer, in attention scores: measured for small models."""

LEAST_KNOWN = {"cpu": 0.5, "cuda": 1.0}
"""The share of a row's nodes that other rows must ask for already, for it not to ask for them again. On CUDA the mask
that this needs rules out the fastest kernel and copies keys that heads share: whole rows are better there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Rows of similar size."""

    num_rows: int
    num_queries: int
    num_keys: int
    """Keys of each row, padding included."""
    mask_BQL: Tensor | None
    """Which keys a query sees; None where queries are keys: those up to its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeInput:
    """A prefix tree as a model reads it."""

    tokens_U: Tensor
    positions_U: Tensor
    blocks: tuple[Block, ...]
    queries: Tensor
    """The nodes that serve as queries, row after row, block after block."""
    keys: Tensor
    """The nodes that serve as keys, row after row, block after block."""
    place_U: Tensor
    """Where each node is among ``queries``."""
    packed: PackedRows | None = None
    """Rows side by side without padding. There are no blocks then, and no ``queries``, ``keys`` and ``place_U``."""

    @classmethod
    def without_padding(cls, tree: PrefixTree, device: torch.device) -> TreeInput:
        """For attention that needs no padding (``varlen.py``)."""
        nothing = torch.empty(0, dtype=torch.int64)
        return cls(
            tokens_U=upload(tree.tokens_U, device),
            positions_U=upload(tree.positions_U, device),
            blocks=(),
            queries=nothing,
            keys=nothing,
            place_U=nothing,
            packed=PackedRows.of(tree, device),
        )

    @classmethod
    def of(cls, tree: PrefixTree, device: torch.device) -> TreeInput:
        tensor = partial(upload, device=device)

        blocks, queries, keys = [], [], []
        for rows in _similar_rows(tree, device.type):
            queries_BQ, keys_BL = _pad([queries for queries, _ in rows]), _pad([keys for _, keys in rows])
            (num_rows, num_queries), num_keys, mask_BQL = queries_BQ.shape, keys_BL.shape[1], None
            if any(len(asking) != len(seen) for asking, seen in rows):
                # The column of a key is its position; behind a row's last key stands padding, unseen by its queries.
                mask_BQL = tensor(np.arange(num_keys) <= tree.positions_U[queries_BQ][..., None])
            blocks.append(Block(num_rows=num_rows, num_queries=num_queries, num_keys=num_keys, mask_BQL=mask_BQL))
            queries.append(queries_BQ.ravel())
            keys.append(keys_BL.ravel())
        asking = np.concatenate(queries)
        place_U = np.empty(len(tree.tokens_U), np.int64)
        # From the back, so that the first place of a node counts: padding repeats nodes behind it.
        place_U[asking[::-1]] = np.arange(len(asking))[::-1]
        return cls(
            tokens_U=tensor(tree.tokens_U),
            positions_U=tensor(tree.positions_U),
            blocks=tuple(blocks),
            queries=tensor(asking),
            keys=tensor(np.concatenate(keys)),
            place_U=tensor(place_U),
        )

    def by_block(self, of_queries: Tensor, *of_keys: Tensor) -> Iterator[tuple[Block, Tensor, *tuple[Tensor, ...]]]:
        """What belongs to each query, and what belongs to each key, as B x Q and B x L."""
        parts = [of_queries.split([block.num_rows * block.num_queries for block in self.blocks])]
        parts += [values.split([block.num_rows * block.num_keys for block in self.blocks]) for values in of_keys]
        for block, *pieces in zip(self.blocks, *parts, strict=True):
            yield block, *(piece.unflatten(0, (block.num_rows, -1)) for piece in pieces)


def _similar_rows(tree: PrefixTree, device: str) -> Iterator[list[tuple[Nodes, Nodes]]]:
    """Rows (queries, keys) in blocks that waste little padding; whole ones and others apart."""
    whole, others, last_known = [], [], -1
    for leaf in tree.leaves:
        path = tree.paths[leaf]
        num_known = int(np.searchsorted(path, last_known, side="right"))  # nodes are numbered leaf after leaf
        last_known = path[-1]
        if num_known >= LEAST_KNOWN[device] * len(path):
            others.append((path[num_known:], path))
        else:
            whole.append((path, path))
    for rows in (whole, others):
        sizes = [(len(queries), len(keys)) for queries, keys in rows]
        for pack in packing.pack(sizes, overhead=BLOCK_OVERHEAD[device]):
            yield [rows[index] for index in pack]


def _pad(paths: list[Nodes]) -> Nodes:
    """Padding repeats a node of the same row: broken values (0 * NaN) then reach no row that shares no node with it."""
    rows_BL = np.empty((len(paths), max(map(len, paths))), np.int64)
    for row, path in zip(rows_BL, paths, strict=True):
        row[: len(path)], row[len(path) :] = path, path[0]
    return rows_BL


def run(model: nn.Module, given: TreeInput, output: str) -> Tensor:
    """What a Transformers module says at each node: its ``output``, U x something."""
    if sees_trees(model):
        found = model(input_ids=given.tokens_U[None], position_ids=given.positions_U[None], use_cache=False, tree=given)
        return cast(Tensor, getattr(found, output)[0])
    found = []
    columns, tokens = given.positions_U[given.queries], given.tokens_U[given.keys]
    for _, columns_BQ, tokens_BL in given.by_block(columns, tokens):
        said_BLD = getattr(model(input_ids=tokens_BL, use_cache=False), output)
        found.append(said_BLD.take_along_dim(columns_BQ[..., None], dim=1).flatten(0, 1))
    return take(torch.cat(found), given.place_U)


def take(values: Tensor, index: Tensor) -> Tensor:
    """``values[index]``, with gradients that are added up in a fixed order, also on CUDA."""
    return F.embedding(index, values)


def sees_trees(model: nn.Module) -> bool:
    return bool(model.config._attn_implementation == TREE_ATTENTION)


def head_dim(model: PreTrainedModel) -> int | None:
    """Width of the attention heads; None if it is not the same for queries and values."""
    config = model.config.get_text_config()
    width = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    return width if getattr(config, "v_head_dim", width) == width else None


def attends_to_all(config: PreTrainedConfig) -> bool:
    """Whether each token of a model attends to all tokens before it, in every layer."""
    config = config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return kinds == {"full_attention"} and getattr(config, "sliding_window", None) is None


@torch.no_grad()
def teach(model: PreTrainedModel) -> None:
    """Let the model see trees, if it gives the same answers then. Its config says whether it does: ``sees_trees``."""
    if not attends_to_all(model.config):
        return
    config = model.config.get_text_config()
    token = [number % config.vocab_size for number in range(5)]
    sequences = [np.array([token[place] for place in places], np.int32) for places in ((0, 1, 2, 3), (0, 1, 3), (4, 0))]
    given = TreeInput.of(prefix_tree.plant(sequences), next(model.parameters()).device)
    plain, before = run(model, given, "logits"), model.config._attn_implementation
    model.set_attn_implementation(TREE_ATTENTION)
    try:
        is_same = bool((run(model, given, "logits") - plain).abs().max() <= 1e-4 * plain.abs().max())
    except (TypeError, ValueError, RuntimeError):  # a module that takes no further arguments, or mixes rows
        is_same = False
    if not is_same:
        model.set_attn_implementation(before)


def compile_layers(model: nn.Module) -> None:
    """Compile the layers. They are alike, so they share the compiled code."""
    # Sizes that are equal in the first batch need not be equal in the next: without this, torch would compile again.
    fx_config.use_duck_shape = False
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.compile(dynamic=True)  # batches differ in size


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **others: Any
) -> tuple[Tensor, None]:
    """Attention as Transformers calls it. With a tree, states are 1 x heads x U x head width."""
    given: TreeInput | None = others.pop("tree", None)
    if given is None:
        return cast(tuple[Tensor, None], sdpa_attention_forward(module, query, key, value, attention_mask, **others))
    if given.packed is not None:
        return _attend_packed(given.packed, query, key, value, others.get("scaling")), None
    return _attend_padded(module, given, query, key, value, **others), None


def _attend_packed(rows: PackedRows, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    # In the precision of the value, which comes straight from a linear layer: rotation may have made the others wider.
    by_node = [states.squeeze(0).transpose(0, 1).flatten(1).to(value.dtype) for states in (query, key, value)]
    width = value.shape[-1]
    asked, seen, taken = (states.unflatten(1, (-1, width)) for states in rows.from_nodes(*by_node))
    attended = varlen.attend(asked, seen, taken, rows.row_ends, rows.longest, scale)
    return rows.to_nodes(attended.flatten(1)).view(1, -1, *attended.shape[1:])


@torch.compiler.disable  # batches differ in the number of blocks, and each number would be compiled by itself
def _attend_padded(
    module: nn.Module, given: TreeInput, query: Tensor, key: Tensor, value: Tensor, **others: Any
) -> Tensor:
    asked, seen, taken = _spread(query, given.queries), _spread(key, given.keys), _spread(value, given.keys)
    found = []
    for block, *rows in given.by_block(asked, seen, taken):
        mask = None if block.mask_BQL is None else block.mask_BQL[:, None]
        attended, _ = sdpa_attention_forward(module, *(states.transpose(1, 2) for states in rows), mask, **others)
        found.append(attended.flatten(0, 1))
    attended = torch.cat(found)
    return take(attended.flatten(1), given.place_U).view(1, -1, *attended.shape[1:])


def _spread(states: Tensor, nodes: Tensor) -> Tensor:
    """The states of some nodes, of those of all: 1 x heads x U x width. Comes as nodes x heads x width."""
    _, heads, _, width = states.shape
    return take(states.squeeze(0).transpose(0, 1).flatten(1), nodes).unflatten(1, (heads, width))


AttentionInterface.register(TREE_ATTENTION, _attend)
