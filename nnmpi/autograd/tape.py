"""The tape: how each result was made, and the walk back through it.

    TapeNode(y, parents, needs, vjps, prepare)   how the tensor y was made
    backward(root, seed, on_leaf)                the gradient of every leaf under root
    begun(root, seed).in_parts(parts)            ... pausing whenever all gradients of the next of
                                                 several groups of leaves (`parts`) are final

There is no global list of operations: the tape is the graph of nodes below the root. Nodes are
visited latest first, so the gradient of a tensor is complete when its node is visited: all its uses
are later. The gradient of a leaf is final when each node that uses it has contributed.

Rules:

- A node holds no tensors except leaves. So the tape keeps only the arrays that vjps close over. A
  vjp that needs only the shape of an array must close over the shape.
- The order of visits is the order of additions, and therefore decides the bits: on one rank and on
  many, in one pass and in one of two halves (`half_pass.py`). It depends only on the `tick` of
  each node, which is unique.
- Vjps of later arguments run first. Ops therefore take weights after inputs: the all-reduce of a
  weight gradient can start before the gradient of the input is computed.
- `refresh` is called right before the vjps of a node. So a vjp may keep the array of a parameter
  without a copy, even if its values are gathered again for the backward pass (ZeRO 3).
- A visited node is cleared, which frees the arrays of its vjps during the pass. Code that keeps a
  closure of a node keeps activations alive.
- A RepeatedNode is not visited: its function runs again, and the nodes that this makes are visited.
  They are numbered as if they had been kept, so gradients are added in the same order.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import zip_longest
from typing import Any, NoReturn, TypeAlias

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import PlacedGradients, precision, progress_hook
from nnmpi.autograd.recording import AnyTensor, Storage, TapeNode, memory_row

Visit: TypeAlias = tuple[int, TapeNode, Sequence[bool]]
"""(-tick, node, mask of the parents that get a gradient); a heap yields the latest node first."""

OnLeaf: TypeAlias = Callable[[Any], None]
"""Called with each leaf whose gradient is final."""


def seed(root: AnyTensor, gradient: Array | None) -> Array:
    """The gradient that a backward pass starts from: the given one, or 1 for a single element."""
    value = root.array  # before its history, which this renews
    if not root._requires_grad:
        raise RuntimeError(
            "backward: this tensor was not computed from one that requires a gradient: create that "
            "with requires_grad=True, and compute outside of no_grad()"
        )
    xp, shape = xp_of(value), tuple(value.shape)
    if gradient is not None:
        given = xp.asarray(gradient, value.dtype)
        if given.shape != shape:
            raise ValueError(
                f"backward: gradient of shape {given.shape} for a tensor of shape {shape}"
            )
        return given
    if value.size != 1:
        raise ValueError(
            f"backward: a tensor of shape {shape} is not a scalar: "
            "pass a gradient of that shape, or reduce it first, as by .sum()"
        )
    return xp.array(1, value.dtype).reshape(shape)


def backward(
    root: AnyTensor, seed: Array, on_leaf: OnLeaf | None = None, retain_graph: bool = False
) -> None:
    """Adds the gradient of sum(root * seed) to every leaf under root.

    `on_leaf(leaf)` is called once per leaf, as soon as its gradient is final. Nodes are cleared on
    the way, unless `retain_graph`.
    """
    begun(root, seed, retain_graph).finish(on_leaf)
    if root.node is None and on_leaf is not None:
        on_leaf(root)


def begun(root: AnyTensor, seed: Array, retain_graph: bool = False) -> "UnfinishedBackward":
    """Returns a backward pass from `root`, whose gradient is `seed`, that has not visited a node
    yet. If `root` is a leaf, its gradient is added at once, and nothing is left to compute."""
    node = root.node
    if node is None:
        root.receive(unchanged, seed)
        return UnfinishedBackward([], {}, retain_graph)
    if node.vjps is None:
        refuse_used()
    return UnfinishedBackward([(-node.tick, node, node.needs)], {node: seed}, retain_graph)


@dataclass(slots=True, eq=False)
class UnfinishedBackward:
    """A backward pass that is not complete: the nodes to visit next, and the gradients of their
    results. After `first_half` these are visited nodes that have further gradients to pass on."""

    _visits: list[Visit] | None
    _grads: dict[TapeNode, Any]
    _retain_graph: bool
    _leaf_uses: dict[AnyTensor, int] | None = None

    def finish(self, on_leaf: OnLeaf | None = None) -> None:
        """Completes the backward pass, with the bits of an undivided pass. `on_leaf(leaf)` is
        called once per leaf, as soon as its gradient is final."""
        visits = self._taken()
        contributed = None if on_leaf is None else _counting(_uses(visits), on_leaf)
        progress = progress_hook.get()
        while visits:
            self._visit_next(visits, contributed)
            progress()

    def leaves(self) -> Iterable[AnyTensor]:
        """The leaves to which `finish` will add gradients."""
        self._leaf_uses = _uses(self._visits or [])
        return [*self._leaf_uses]

    def in_parts(
        self,
        parts: Sequence[Iterable[AnyTensor]],
        absent: Sequence[Collection[AnyTensor]] = (),
        unrepeated: Sequence[Collection[AnyTensor]] = (),
    ) -> Generator[None, None, None]:
        """Finishes the pass in parts: a generator that yields after each part but the last, when
        the gradients of the leaves in this group, and in all earlier ones, are final.

        absent[k] are parameters that are not in memory during part k, but gathered later (ZeRO 3).
        If they are given, part k goes on after its last gradient, up to the first node that would
        read one of them. For a node whose function runs again in the backward pass (checkpointing),
        and may read other parameters then, unrepeated[k] takes the place of absent[k].
        """
        if len(parts) < 2:
            return self.finish()
        visits, progress = self._taken(), progress_hook.get()
        uses = self._leaf_uses or _uses(visits)
        due = [{leaf for leaf in part if leaf in uses} for part in parts]

        def on_leaf(leaf: AnyTensor) -> None:
            for part in due:
                part.discard(leaf)

        contributed = _counting(uses, on_leaf)
        sets = due[:-1], absent[:-1], unrepeated[:-1]
        for part, *unread in zip_longest(*sets, fillvalue=()):
            while part or (unread[0] and visits and _reads_none(visits[0][1], *unread)):
                self._visit_next(visits, contributed)
                progress()
            yield
        while visits:
            self._visit_next(visits, contributed)
            progress()

    def _taken(self) -> list[Visit]:
        visits, self._visits = self._visits, None
        if visits is None:
            raise RuntimeError("finish: this backward pass is finished already; call it once")
        return visits

    def _visit_next(self, visits: list[Visit], contributed: OnLeaf | None) -> None:
        visit, grads = heappop(visits), self._grads
        node = visit[1]
        if not node.runs_again:
            pass_on(visit, grads.pop(node), visits, grads, contributed, self._retain_graph)
            return
        run_again(node, grads.pop(node), visits, grads)
        if not self._retain_graph:
            node.clear()


def pass_on(
    visit: Visit,
    g: Any,
    visits: list[Visit],
    grads: dict[TapeNode, Any],
    contributed: OnLeaf | None,
    retain: bool,
) -> None:
    """Runs the vjps of the node in `visit` with its gradient g, and adds the results to the
    gradients of its parents: to `grads` for nodes, to `grad` for leaves.

    Calls contributed(leaf) for each leaf that gets a part. Unless `retain`, clears the node.
    """
    _, node, needs = visit
    parents, vjps, prepare, made = node.parents, node.vjps, node.prepare, node.tick
    if vjps is None:
        refuse_used()
    vjps = [*vjps]
    if node.storage.written > made:
        _refuse_written(node, node.storage)
    if g.dtype != node.dtype:
        g = g.astype(node.dtype)
    for parent in parents:
        if parent is not None:
            if parent.storage.written > made:
                _refuse_written(node, parent.storage)
            if parent.is_refreshed:  # before any vjp: it may have closed over the array
                parent.refresh()
    if not retain:
        node.clear()
    if isinstance(prepare, PlacedGradients):
        pairs = zip(parents, needs, strict=True)
        memory = [p.grad_memory if need and not p.has_grad else None for p, need in pairs]
        g = prepare.in_memory(g, needs, memory)
    elif prepare is not None:
        g = prepare(g, needs)
    prepare = None
    # from the last argument on: weights come last, and their all-reduce can start the sooner
    for k in range(len(parents) - 1, -1, -1):
        if not needs[k]:
            continue
        parent, vjp, vjps[k] = parents[k], vjps[k], None
        if not isinstance(parent, TapeNode):
            if parent._requires_grad:  # it may have been frozen since the forward pass
                parent.receive(vjp, g)
            if contributed is not None:
                contributed(parent)
        elif parent.vjps is None:
            refuse_used()
        elif parent in grads:
            grads[parent] = precision.added(grads[parent], vjp(g, None))
        else:
            grads[parent] = vjp(g, None)
            heappush(visits, (-parent.tick, parent, parent.needs))


def run_again(node: TapeNode, g: Any, visits: list[Visit], grads: dict[TapeNode, Any]) -> TapeNode:
    """Runs the function of a checkpointed node again; adds its result's node, with gradient g."""
    if node.vjps is None:
        refuse_used()
    for parent in node.parents:
        if parent.storage.written > node.tick:
            _refuse_written(node, parent.storage)
    again: TapeNode = node.vjps[0](node)
    grads[again] = g
    heappush(visits, (-again.tick, again, again.needs))
    return again


def _uses(visits: list[Visit]) -> dict[AnyTensor, int]:
    """Returns how many contributions each leaf will get from the nodes of `visits`."""
    uses: dict[AnyTensor, int] = {}
    seen: set[TapeNode] = set()
    stack = [*visits]
    while stack:
        # the visit's `needs`, not the node's: in a second half, it may cover only some parents
        _, node, needs = stack.pop()
        for parent, need in zip(node.parents, needs, strict=True):
            if need and not isinstance(parent, TapeNode):
                uses[parent] = uses.get(parent, 0) + 1
            elif need and parent not in seen:
                seen.add(parent)
                stack.append((-parent.tick, parent, parent.needs))
    return uses


def _reads_none(
    node: TapeNode, absent: Collection[AnyTensor], unrepeated: Collection[AnyTensor]
) -> bool:
    """True if the backward pass of a node reads none of the parameters `absent`, which are not in
    memory; or, for a node whose function runs again in the backward pass, none of `unrepeated`."""
    leaves = unrepeated if node.runs_again else absent
    return not any(parent in leaves for parent in node.parents)


def _counting(remaining: dict[AnyTensor, int], on_leaf: OnLeaf) -> OnLeaf:
    """Returns a function to call after each contribution to a leaf; it calls `on_leaf` after the
    last one. `remaining` has the number of contributions to each leaf."""

    def contributed(leaf: AnyTensor) -> None:
        remaining[leaf] -= 1
        if not remaining[leaf]:
            on_leaf(leaf)

    return contributed


def unchanged(g: Array, out: Array | None) -> Array:
    return g


def refuse_used() -> NoReturn:
    raise RuntimeError(
        "backward: this graph has been used up by an earlier backward; "
        "pass retain_graph=True to that one, or run the forward pass again"
    )


def _refuse_written(node: TapeNode, storage: Storage) -> None:
    """Raises RuntimeError if a backward pass of the node may read values overwritten since."""
    keeps_written = memory_row("keeps_written")
    if keeps_written is not None and not keeps_written(node, storage):
        return
    raise RuntimeError(
        f"backward: a result of shape {node.shape}, or a tensor that it was computed from, was "
        "written in place after the forward pass had used it, so the gradient would be wrong; run "
        "the forward pass again after the write, or write to a copy"
    )
