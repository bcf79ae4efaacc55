"""The tape: what a result was made from, and the walk back through it.

    Node(parents, vjps, prepare)     how one tensor came to be
    backward(root, seed, on_leaf)    gradients of every leaf under root

There is no list of all operations anywhere: the tape is the nodes that hang
from the root. They are visited latest first, so that a tensor's gradient is
complete when its turn comes: whatever used it was made after it. A leaf's
gradient is final when as many contributions have arrived as nodes use it.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

from nnmpi.backend import Array, xp_of
from nnmpi.kernels.progress_hook import progress_hook
from nnmpi.kernels.result import Prepare, Vjp

tick = count(1).__next__
"""Numbers operations and in-place writes in the order in which they happen."""


class Variable(Protocol):
    """What the tape needs to know of a tensor."""

    requires_grad: bool
    node: "Node | None"
    memory: "Memory"

    @property
    def data(self) -> Array:
        """The array itself."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""

    @property
    def dtype(self) -> Any:
        """The element type; a gradient has it too."""

    def receive(self, vjp: Vjp, g: Any) -> None:
        """Take a contribution to this leaf's gradient."""


class Memory:
    """When the memory behind a tensor was last written in place; its views share this."""

    __slots__ = ("written",)

    def __init__(self) -> None:
        self.written = 0


class Node(NamedTuple):
    """How a tensor was made: a parent (or None for a constant) beside each vjp."""

    parents: Sequence[Any]
    needs: Sequence[bool]
    vjps: tuple[Vjp, ...]
    prepare: Prepare | None
    made: int


USED = Node((), [], (), None, 0)
"""Stands in the place of a node that a backward pass has used up."""


OnLeaf: TypeAlias = Callable[[Any], None]
"""What is told of leaves whose gradients are final."""


def _leaf_uses(root: Variable) -> dict[Variable, int]:
    """How many contributions each leaf under root will get."""
    uses: dict[Variable, int] = {}
    seen, stack = {root}, [root]
    while stack:
        node = stack.pop().node
        assert node is not None
        for parent, need in zip(node.parents, node.needs, strict=True):
            if need and parent.node is None:
                uses[parent] = uses.get(parent, 0) + 1
            elif need and parent not in seen:
                seen.add(parent)
                stack.append(parent)
    return uses


def _counting(root: Variable, on_leaf: OnLeaf) -> OnLeaf:
    """What to call at each contribution to a leaf under root: on_leaf hears of the last one."""
    uses = _leaf_uses(root)

    def contributed(leaf: Variable) -> None:
        uses[leaf] -= 1
        if not uses[leaf]:
            on_leaf(leaf)

    return contributed


def _refuse_used() -> NoReturn:
    raise RuntimeError(
        "backward: this graph has been used up by an earlier backward; "
        "pass retain_graph=True to that one, or run the forward pass again"
    )


def _refuse_written(tensor: Variable) -> NoReturn:
    raise RuntimeError(
        f"backward: a tensor of shape {tensor.shape} was written in place after the forward pass "
        "had used it, so the gradient would be wrong; run the forward pass again after the write, "
        "or write to a copy"
    )


def seed(root: Variable, gradient: Array | None) -> Array:
    """Where a backward pass from root starts: the gradient given, or 1 for a scalar."""
    if not root.requires_grad:
        raise RuntimeError("backward: nothing under this tensor requires a gradient")
    xp = xp_of(root.data)
    if gradient is not None:
        given = xp.asarray(gradient, root.dtype)
        if given.shape != root.shape:
            raise ValueError(
                f"backward: gradient of shape {given.shape} for a tensor of shape {root.shape}"
            )
        return given
    if root.data.size != 1:
        raise ValueError(
            f"backward: a tensor of shape {root.shape} is not a scalar: "
            "pass a gradient of that shape, or reduce it first, as by .sum()"
        )
    return xp.ones(root.shape, root.dtype)


def _arrived(tensor: Variable, g: Any) -> tuple[Node, Any]:
    """The node of a tensor whose gradient is complete, and that gradient as its vjps take it."""
    node = tensor.node
    if node is USED or node is None:
        _refuse_used()
    if tensor.memory.written > node.made:
        _refuse_written(tensor)
    if g.dtype != tensor.dtype:
        g = g.astype(tensor.dtype)
    return node, g if node.prepare is None else node.prepare(g, node.needs)


def backward(
    root: Variable,
    seed: Array,
    on_leaf: OnLeaf | None = None,
    retain_graph: bool = False,
) -> None:
    """Add to every leaf under root the gradient of sum(root * seed).

    `on_leaf(leaf)` is called once per leaf, as soon as its gradient is final. Nodes are used up,
    so that what they hold is freed on the way, unless `retain_graph`.
    """
    if root.node is None:
        root.receive(lambda g, out: g, seed)
        if on_leaf is not None:
            on_leaf(root)
        return
    contributed = None if on_leaf is None else _counting(root, on_leaf)
    progress = progress_hook.get()
    grads: dict[Variable, Any] = {root: seed}
    ready = [(-root.node.made, root)]
    while ready:
        tensor = heappop(ready)[1]
        node, g = _arrived(tensor, grads.pop(tensor))
        progress()
        parents, needs, vjps, _, made = node
        for k in range(len(parents) - 1, -1, -1):  # weights come last: theirs are final early so
            parent = parents[k]
            if parent is not None and parent.memory.written > made:
                _refuse_written(parent)
            if not needs[k]:
                continue
            vjp = vjps[k]
            if parent.node is None:
                parent.receive(vjp, g)
                if contributed is not None:
                    contributed(parent)
            elif parent.node is USED:
                _refuse_used()
            elif parent in grads:
                grads[parent] = grads[parent] + vjp(g, None)
            else:
                grads[parent] = vjp(g, None)
                heappush(ready, (-parent.node.made, parent))
        if not retain_graph:
            tensor.node = USED
