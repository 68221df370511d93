"""The forward of a fleet: vmapped over rows, recorded once as a plain graph of tensor operations, and tried.

    losses (rows,) = vmap(loss)(parameters, batches)

Row m of every operation reads row m alone; so that this is known and not hoped, equal rows must give equal
bits before the first step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from trimtab.errors import InputError
from trimtab.runs.config import RunConfig
from trimtab.torch_internals import UNSAFE_VIEW, make_fx


def record(
    loss: Callable[..., Tensor],
    parts: list[Tensor],
    fixed: Sequence[Tensor],
    batch: tuple[Tensor, Tensor],
    config: RunConfig,
) -> Callable[..., Tensor]:
    """The vmapped `loss(parts, fixed, x, y)` as a plain graph for this number of rows, tried on equal rows.

    Args:
        parts: the parameters, equal in every row, with the strides they train with: the graph is recorded
            for them.
        fixed: tensors that are not trained. Running statistics move in the trial: copies are used.
        config: one of the members, for the words of a refusal.
    """
    still, same = [equal(v) for v in fixed], [equal(b) for b in batch]
    with torch.no_grad(), warnings.catch_warnings():
        # operations without a batching rule run row by row: slower, with the same numbers
        warnings.simplefilter("ignore")
        graph = plain(make_fx(vmap(loss))([p.detach() for p in parts], still, *same))
    losses = graph(parts, still, *same)
    gradients = torch.autograd.grad(losses.sum(), parts)
    if not all(_equal_rows(t.detach()) for t in (losses, *gradients, *still)):
        raise InputError(
            f"equal rows of a fleet must give equal bits: with {len(same[0])} rows of {config.model} (width "
            f"{config.width}, depth {config.depth}) they do not on this machine's kernels. Pass fleet = 1."
        )
    return graph


def equal(stacked: Tensor) -> Tensor:
    """As many rows, each a copy of the first."""
    return stacked[:1].expand(stacked.shape).clone()


def _equal_rows(stacked: Tensor) -> bool:
    """Whether every row has the bits of the first; rows that are not a number count as equal."""
    return bool(((stacked == stacked[:1]) | (stacked.isnan() & stacked[:1].isnan())).all())


def plain(graph: Any) -> Callable[..., Tensor]:
    """A recorded graph without the reshapes that change nothing; they are a third of its calls."""
    idle = {
        torch.ops.aten.expand.default,
        torch.ops.aten.view.default,
        UNSAFE_VIEW,
        torch.ops.aten.reshape.default,
    }
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target in idle:
            source = node.args[0]
            before, after = (n.meta.get("tensor_meta") or n.meta.get("val") for n in (source, node))
            if before is not None and after is not None and tuple(before.shape) == tuple(after.shape):
                node.replace_all_uses_with(source)
                graph.graph.erase_node(node)
    graph.recompile()
    return graph


def twins(model: nn.Module) -> dict[str, str]:
    """{further name of a tied tensor: the name it goes by}; moving a module to meta unties them."""
    first = {id(v): n for n, v in (*model.named_parameters(), *model.named_buffers())}
    every = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {n: first[id(v)] for n, v in every if n != first[id(v)]}
