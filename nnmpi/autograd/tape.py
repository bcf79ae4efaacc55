"""The tape: how each result was made, and the walk back through it.

    TapeNode(y, parents, needs, vjps, prepare)   how the tensor y was made
    backward(root, seed, on_leaf, until)         the gradient of every leaf under root
    begun(root, seed).in_parts(parts)            ... pausing whenever all gradients of the next of
                                                 several groups of leaves (`parts`) are final

There is no global list of operations: the tape is the graph of nodes below the root. Nodes are
visited latest first, so the gradient of a tensor is complete when its node is visited: everything
that used the tensor was made after it. The gradient of a leaf is final when each node that uses it
has contributed.

Rules:

- A node holds no tensors except leaves. So the tape keeps only the arrays that vjps close over. A
  vjp that needs only the shape of an array must close over the shape.
- The order of visits is the order of additions, and therefore decides the bits: on one rank and on
  many, in one pass and in one that is interrupted (`until`). It depends only on the `tick` of each
  node, which is unique.
- Vjps of later arguments run first. Ops therefore take weights after inputs: the all-reduce of a
  weight gradient can start before the gradient of the input is computed.
- `refresh` is called right before the vjps of a node. So a vjp may keep the array of a parameter
  without a copy, even if its values are gathered again for the backward pass (ZeRO 3).
- A visited node is cleared, which frees the arrays of its vjps during the pass. Code that keeps a
  closure of a node keeps activations alive.
- A RepeatedNode is not visited: its function runs again, and the nodes that this makes are visited.
  They are numbered as if they had been kept, so gradients are added in the same order.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import zip_longest
from typing import Any, NoReturn, TypeAlias

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import precision, progress_hook
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
    root: AnyTensor,
    seed: Array,
    on_leaf: OnLeaf | None = None,
    retain_graph: bool = False,
    until: AnyTensor | Sequence[AnyTensor] | None = None,
) -> "UnfinishedBackward | None":
    """Adds the gradient of sum(root * seed) to every leaf under root.

    `on_leaf(leaf)` is called once per leaf, as soon as its gradient is final. Nodes are cleared on
    the way, unless `retain_graph`.

    With `until`, a tensor under root, only its gradient is computed; `finish` of the returned
    object computes all others. `until` may be several tensors, none of which depends on another;
    tensors that no gradient reaches are left out.
    """
    if until is not None:
        several = until if isinstance(until, Sequence) else (until,)
        return _first_half(root, seed, on_leaf, retain_graph, several, several is not until)
    if root.node is not None:
        begun(root, seed, retain_graph).finish(on_leaf)
        return None
    root.receive(_same, seed)
    if on_leaf is not None:
        on_leaf(root)
    return None


def _first_half(
    root: AnyTensor,
    seed: Array,
    on_leaf: OnLeaf | None,
    retain_graph: bool,
    until: Sequence[AnyTensor],
    is_reached: bool,
) -> "UnfinishedBackward":
    """Runs a backward pass from root as far as `until`, and returns the rest of it; with
    `is_reached`, raises ValueError if no gradient reaches the first of these."""
    node = root.node
    ends: dict[Any, AnyTensor] = {end.node or end: end for end in until}
    path = _path(node or root, ends)
    if is_reached:
        _check_reached(root, path, until[0])
    if node is None:
        root.receive(_same, seed)
        if on_leaf is not None:
            on_leaf(root)
        return UnfinishedBackward([], {}, retain_graph)
    if node.vjps is None:
        _refuse_used()
    visits: list[Visit] = [(-node.tick, node, node.needs)]
    # a copy: the caller may reuse the seed's memory before `finish`
    rest = _walk_path(visits, {node: seed.copy(order="K")}, ends, path, retain_graph)
    for end in ends.values():
        if end in path and on_leaf is not None:  # for a non-leaf, `path` has its node instead
            on_leaf(end)
    return rest


def begun(root: AnyTensor, seed: Array, retain_graph: bool = False) -> "UnfinishedBackward":
    """Returns a backward pass from `root`, whose gradient is `seed`, that has not visited a node
    yet. If `root` is a leaf, its gradient is added at once, and nothing is left to compute."""
    node = root.node
    if node is None:
        root.receive(_same, seed)
        return UnfinishedBackward([], {}, retain_graph)
    if node.vjps is None:
        _refuse_used()
    return UnfinishedBackward([(-node.tick, node, node.needs)], {node: seed}, retain_graph)


@dataclass(slots=True, eq=False)
class UnfinishedBackward:
    """A backward pass that is not complete: the nodes to visit next, and the gradients of their
    results. After `until` these are the visited nodes that have further gradients to pass on."""

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
            _pass_on(visit, grads.pop(node), visits, grads, contributed, self._retain_graph)
            return
        _run_again(node, grads.pop(node), visits, grads)
        if not self._retain_graph:
            node.clear()


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
    gradient is complete when the node is visited, and gradients are added in the order of an
    undivided pass.
    """
    late: list[Visit] = []
    late_grads: dict[TapeNode, Array] = {}
    progress = progress_hook.get()
    while visits:
        made, node, needs = heappop(visits)
        g = grads.pop(node)
        later: Sequence[bool] = ()
        if node in ends:
            ends[node].receive(_same, g)
            later = needs
        elif node.runs_again and node in path:
            again = _run_again(node, g, visits, grads)
            path |= _path(again, dict.fromkeys(p for p in node.parents if p in path))
        else:
            # the vjps towards `until` run now, the others in `finish`
            towards = [need and p in path for p, need in zip(node.parents, needs, strict=True)]
            later = [need and not t for need, t in zip(needs, towards, strict=True)]
            if True in towards:
                _pass_on((made, node, towards), g, visits, grads, None, retain_graph or any(later))
            progress()
        if True in later:
            # the vjps leave the node, so that another backward pass through it is refused
            later_node = node if retain_graph else node.taken()
            late.append((made, later_node, later))
            late_grads[later_node] = g
        elif not retain_graph:
            node.clear()
    return UnfinishedBackward(late, late_grads, retain_graph)


def _pass_on(
    visit: Visit,
    g: Any,
    visits: list[Visit],
    grads: dict[TapeNode, Any],
    contributed: OnLeaf | None,
    retain: bool,
) -> None:
    """Runs the vjps of the node in `visit` with its gradient g, and adds the results to the
    gradients of its parents: to `grads` for nodes, to `grad` for leaves.

    `contributed` is called with each leaf that gets a contribution. Unless `retain`, the node is
    cleared.
    """
    _, node, needs = visit
    parents, vjps, prepare, made = node.parents, node.vjps, node.prepare, node.tick
    if vjps is None:
        _refuse_used()
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
    if prepare is not None:
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
            _refuse_used()
        elif parent in grads:
            grads[parent] = precision.added(grads[parent], vjp(g, None))
        else:
            grads[parent] = vjp(g, None)
            heappush(visits, (-parent.tick, parent, parent.needs))


def _run_again(node: TapeNode, g: Any, visits: list[Visit], grads: dict[TapeNode, Any]) -> TapeNode:
    """Runs the function of a checkpointed node again; adds the node of its result, with the
    gradient g."""
    if node.vjps is None:
        _refuse_used()
    for parent in node.parents:
        if parent.storage.written > node.tick:
            _refuse_written(node, parent.storage)
    again: TapeNode = node.vjps[0](node)
    grads[again] = g
    heappush(visits, (-again.tick, again, again.needs))
    return again


def _path(start: Any, ends: Mapping[Any, Any]) -> set[Any]:
    """Returns the nodes and leaves on all paths from `start` to `ends`, both included; none if
    there is none."""
    inner, seen, stack = [], {start}, [start]
    while stack:
        node = stack.pop()
        if node in ends or not isinstance(node, TapeNode):
            continue
        if node.vjps is None:
            _refuse_used()
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


def _same(g: Array, out: Array | None) -> Array:
    return g


def _refuse_used() -> NoReturn:
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
