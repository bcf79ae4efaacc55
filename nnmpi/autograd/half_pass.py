"""Backward passes in two halves: first the gradients of some tensors, later all others."""

from collections.abc import Mapping, Sequence
from heapq import heappop
from typing import Any

from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels import progress_hook
from nnmpi.autograd.recording import AnyTensor, TapeNode
from nnmpi.autograd.tape import (
    OnLeaf,
    UnfinishedBackward,
    Visit,
    pass_on,
    refuse_used,
    run_again,
    unchanged,
)


def first_half(
    root: AnyTensor,
    seed: Array,
    on_leaf: OnLeaf | None,
    retain_graph: bool,
    until: AnyTensor | Sequence[AnyTensor],
) -> UnfinishedBackward:
    """Computes only the gradient of `until`, a tensor under root; `finish` of the returned object
    computes all others. Raises ValueError if no gradient reaches it.

    `until` may be several tensors, none of which depends on another; those that no gradient reaches
    are left out. `on_leaf` and `retain_graph` are those of `backward`.
    """
    node, several = root.node, until if isinstance(until, Sequence) else (until,)
    ends: dict[Any, AnyTensor] = {end.node or end: end for end in several}
    path = _path(node or root, ends)
    if several is not until:
        _check_reached(root, path, several[0])
    if node is None:
        root.receive(unchanged, seed)
        if on_leaf is not None:
            on_leaf(root)
        return UnfinishedBackward([], {}, retain_graph)
    if node.vjps is None:
        refuse_used()
    visits: list[Visit] = [(-node.tick, node, node.needs)]
    # a copy: the caller may reuse the seed's memory before `finish`
    rest = _walk_path(visits, {node: seed.copy(order="K")}, ends, path, retain_graph)
    for end in ends.values():
        if end in path and on_leaf is not None:  # for a non-leaf, `path` has its node instead
            on_leaf(end)
    return rest


def _walk_path(
    visits: list[Visit],
    grads: dict[TapeNode, Any],
    ends: Mapping[Any, AnyTensor],
    path: set[Any],
    retain_graph: bool,
) -> UnfinishedBackward:
    """Computes the gradients of `ends` only; returns the pass that computes all others.

    visits, grads  the nodes to visit, and the gradients of their results
    ends           {node of a tensor, or the tensor itself if it is a leaf: the tensor}
    path           the nodes on the way from the root to `ends`, and these

    Below the root, only nodes on the path use the result of a node on the path. So this result's
    gradient is complete at its visit, and gradients are added as in an undivided pass.
    """
    late: list[Visit] = []
    late_grads: dict[TapeNode, Array] = {}
    progress = progress_hook.get()
    while visits:
        made, node, needs = heappop(visits)
        g = grads.pop(node)
        later: Sequence[bool] = ()
        if node in ends:
            ends[node].receive(unchanged, g)
            later = needs
        elif node.runs_again and node in path:
            again = run_again(node, g, visits, grads)
            path |= _path(again, dict.fromkeys(p for p in node.parents if p in path))
        else:
            # the vjps towards `until` run now, the others in `finish`
            towards = [need and p in path for p, need in zip(node.parents, needs, strict=True)]
            later = [need and not t for need, t in zip(needs, towards, strict=True)]
            if True in towards:
                pass_on((made, node, towards), g, visits, grads, None, retain_graph or any(later))
            progress()
        if True in later:
            # the vjps leave the node, so that another backward pass through it is refused
            later_node = node if retain_graph else node.taken()
            late.append((made, later_node, later))
            late_grads[later_node] = g
        elif not retain_graph:
            node.clear()
    return UnfinishedBackward(late, late_grads, retain_graph)


def _path(start: Any, ends: Mapping[Any, Any]) -> set[Any]:
    """Returns the nodes and leaves on all paths from `start` to `ends`, both included."""
    inner, seen, stack = [], {start}, [start]
    while stack:
        node = stack.pop()
        if node in ends or not isinstance(node, TapeNode):
            continue
        if node.vjps is None:
            refuse_used()
        inner.append(node)
        for parent, need in zip(node.parents, node.needs, strict=True):
            if need and parent not in seen:
                seen.add(parent)
                stack.append(parent)
    path = seen & ends.keys()
    for node in sorted(inner, key=lambda node: node.tick):  # parents are decided before children
        if any(need and p in path for p, need in zip(node.parents, node.needs, strict=True)):
            path.add(node)
    return path


def _check_reached(root: AnyTensor, path: set[Any], until: AnyTensor) -> None:
    """Raises ValueError if the gradient of root does not reach the tensor `until`."""
    if (root.node or root) not in path or not until.requires_grad:
        raise ValueError(
            f"backward: no gradient of this result (of shape {root.shape}) reaches the tensor "
            f"`until` (of shape {until.shape}); give a tensor that requires a gradient and from "
            "which the result was computed, neither under no_grad nor through detach()"
        )
