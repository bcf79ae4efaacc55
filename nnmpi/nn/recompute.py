"""Activation checkpointing: modules that keep only their inputs for the backward pass, and run
`forward` again in it. The option --recompute selects these modules:

    block       each outermost module that has a number as its name, and layers of its own, such
                as h.0 and h.1 in a GPT
    selective   all layers of a class in the table `recomputed` of add-ons, such as attention

The first forward pass makes autograd nodes too, which tell how often parameters and inputs are
used, and drops them. Both runs get the same random numbers and batch statistics.
"""

import re
from bisect import bisect
from collections.abc import Callable, Sequence
from contextvars import Token
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np

from nnmpi.addons import Table
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.arrays.meta import is_meta
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import OpTypes, RepeatedNode, TapeNode, op_types, recording, tick
from nnmpi.nn.graph import Graph, Node, TensorRef
from nnmpi.nn.module import Module
from nnmpi.nn.passes import Pass, ReplayStats, current_pass

CHECKED_STEPS = 3
"""The number of first steps in which recomputed outputs are compared with the first ones."""

DIFFERS = (
    "recomputed from the same input, it returns another output, so gradients would be wrong: in "
    "`forward`, draw random numbers with nnmpi.random(self, shape), and change no attribute except "
    "buffers that say how parts of a batch combine; or leave out --recompute"
)


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None, **named: Any
) -> Any:
    """Returns function(*args, **named), which must be one tensor; only the arguments are kept until
    the backward pass, in which the function runs again. It is PyTorch's
    `utils.checkpoint.checkpoint`, for functions that a `forward` calls; `use_reentrant` has no
    effect."""
    current, record = current_pass.get(), recording.get()
    if not record or (current is not None and current.around is not None):
        call = partial(function, *args, **named)
        return call() if isinstance(record, bool) else record.run_again(call)
    if current is None:
        raise ValueError(
            "checkpoint: call it in the `forward` of a module, whose passes say which random "
            "numbers the function draws again"
        )
    for held in (*args, *named.values()):
        if isinstance(held, Tensor):
            held.renew()  # before the first run, which the second one has to equal
            held.storage.sharing_record()  # so that it does not become another one until then
    repeat, call, began = _Repeat(current, record), partial(function, *args, **named), tick()
    y = repeat.first(call)
    if not isinstance(y, Tensor):
        raise ValueError(
            f"checkpoint: the function returned a {type(y).__name__}, and what runs again returns "
            "one tensor: let it return that, or call it without checkpoint"
        )
    if y.node is not None and y.node.tick > began:
        y.node = repeat.node_of(y, y.node, began, call)
    return y


class _Repeat:
    """Runs a checkpointed function in forward and backward, with the same random numbers,
    statistics and types; compares checksums."""

    def __init__(self, current: Pass, record: Any) -> None:
        types = op_types.get()
        self._types = types and types.afresh()
        self._stats, self._record = ReplayStats(current.batch_stats), record
        self._pass = current._replace(batch_stats=self._stats)
        self._is_checked = current.is_in_first(CHECKED_STEPS)

    def first(self, function: Callable[[], Any]) -> Any:
        """Runs the function for the first time, in the forward pass."""
        before = current_pass.get()
        current_pass.set(self._pass)
        token = self._set_types()
        try:
            return function()
        finally:  # that the pass was counted has to stay
            op_types.reset(token)
            after = current_pass.get()
            assert before is not None
            assert after is not None
            current_pass.set(after._replace(batch_stats=before.batch_stats))

    def _set_types(self) -> Token[OpTypes | None]:
        """Sets the types in which ops compute (as under autocast) to those of the forward pass;
        returns the token that resets them. Each run begins without the converted copies of
        parameters that autocast keeps, so both make the same autograd nodes."""
        return op_types.set(self._types and self._types.afresh())

    def node_of(
        self, y: Tensor, last: TapeNode, began: int, call: Callable[[], Any]
    ) -> RepeatedNode:
        """Returns a single node for y, the result of the first run, in place of all its nodes:
        `last`, from which y came, and those made after `began`. A backward pass calls call()
        there."""
        nodes, parents, needs = _made_after(began, last)
        self._is_checked &= not is_meta(y._array)
        self._digest = digest(y.array) if self._is_checked else 0
        node = RepeatedNode(y, parents, needs, (partial(self.again, call),))
        node.size = sum(1 + dropped.size for dropped in nodes)
        return node

    def again(self, call: Callable[[], Any], node: RepeatedNode) -> TapeNode:
        """Runs the function again in the backward pass, and returns the node of its result. New
        nodes get numbers just below that of `node`, so that the backward pass visits them next."""
        second = self._pass._replace(counted=True, again=True)
        tokens = current_pass.set(second), recording.set(self._record)
        of_types = self._set_types()
        self._stats.replay()
        began = tick()
        try:
            y: Tensor = call()
        finally:
            current_pass.reset(tokens[0])
            recording.reset(tokens[1])
            op_types.reset(of_types)
        is_same = y.node is not None and (not self._is_checked or digest(y.array) == self._digest)
        nodes, parents, _ = _made_after(began, y.node) if y.node and is_same else ((), (), ())
        uses = sum(1 + made.size for made in nodes), len(parents)
        if uses != (node.size, len(node.parents)):
            module = getattr(getattr(call, "func", None), "__self__", None)
            raise ValueError(f"{getattr(module, 'path', 'checkpoint')}: {DIFFERS}")
        _renumber(nodes, node.tick - 2 * node.size, parents, began)
        return nodes[-1]


def digest(array: Array) -> int:
    """Returns a CRC-32 of the elements; a cryptographic hash takes four times as long."""
    return crc32(backend.to_host(array).ravel("K").view(np.uint8).data)  # not copied


def _made_after(
    began: int, last: TapeNode
) -> tuple[Sequence[TapeNode], Sequence[Any], Sequence[bool]]:
    """Returns (nodes, used, needs) of the function whose result is the node `last`: the nodes made
    after the time `began`, in order; the earlier nodes, parameters and tensors that these use, each
    as often as it is used; and for each use whether it gets a gradient."""
    parents, needs = list[Any](), list[bool]()
    nodes, seen = [last], {last}
    for node in nodes:  # which grow
        for parent, need in zip(node.parents, node.needs, strict=True):
            if not isinstance(parent, TapeNode) or parent.tick < began:
                parents += [] if parent is None else [parent]
                needs += [] if parent is None else [need]
            elif parent not in seen:
                seen.add(parent)
                nodes.append(parent)
    return sorted(nodes, key=lambda node: node.tick), parents, needs


def _renumber(nodes: Sequence[TapeNode], number: int, others: Sequence[Any], began: int) -> None:
    """Gives the nodes of a function that has run again the numbers that those of the first run had,
    since a backward pass visits nodes by descending number: every second one from `number` + 1 on,
    with gaps where one node stands for several.

    In-place writes since the time `began` to the tensors of `nodes` or `others` (what the nodes
    use) get new numbers between the same nodes.
    """
    made = [number, *(node.tick for node in nodes)]
    for node in nodes:
        node.tick = number + 1 + 2 * node.size
        number = node.tick + 1
    for storage in {part.storage.root for part in (*nodes, *others)}:
        if (written := storage.written) > began:
            k = bisect(made, written) - 1
            storage.written = nodes[k - 1].tick + 1 if k else made[0]
            if storage.sharing and storage.sharing.time == written:
                storage.sharing.time = storage.written


# ---- which modules run again


class Recomputed(Module):
    """The base of modules with activation checkpointing: `forward` runs again in backward."""

    def forward(self, *args: Any, **named: Any) -> Any:
        return checkpoint(super().forward, *args, **named)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies or pickles as the class before `as_recomputed`."""
        made: Any = super().__reduce_ex__(protocol)
        return object.__new__, (type(self).__mro__[2],), *made[2:]


def as_recomputed(module: Module) -> None:
    """Makes a module keep only its inputs, and run `forward` again in backward."""
    kind = type(module)
    if not issubclass(kind, Recomputed):
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        module.__class__ = type(kind.__name__, (Recomputed, kind), names)


RECOMPUTED: Table[type[Module]] = Table("recomputed")
"""By a value of --recompute: the class of the layers that run again in the backward pass."""

BLOCK = re.compile(r"(?:[^.]+\.)*?\d+(?=\.)")


def recomputed_with(node: Node, how: str) -> str:
    """Returns the path of the module that runs again and contains this node, if --recompute is
    `how` ("none", "stage", "block" or the name of a layer class), or ""."""
    if how in ("none", "stage"):
        return ""
    if how != "block":
        return node.name if node.layer is RECOMPUTED.row(how) else ""
    is_whole = node.layer is None or bool(node.note)  # a module with others in it
    path = node.within if node.layer is None else node.name
    match = BLOCK.match(f"{path}." if is_whole else path)
    return match[0] if match else ""


def recomputed_paths(graph: Graph, how: str) -> list[str]:
    """Returns the paths of the modules that run again in the backward pass if --recompute is `how`;
    raises ValueError if it asks for some and the model has none, or one returns several tensors."""
    paths = [*dict.fromkeys(filter(None, (recomputed_with(node, how) for node in graph.nodes)))]
    if not paths and how not in ("none", "stage"):
        lacks = "in a numbered module with layers of its own, such as h.0 of a GPT"
        if how != "block":
            lacks = f"a {RECOMPUTED.needed(how).__name__} layer"
        raise ValueError(
            f"recompute {how}: none of the {len(graph.nodes)} layers and ops of the model is "
            f"{lacks}: use --recompute stage with several --micro-batches, or leave it out"
        )
    for call in graph.calls:
        if call.path in paths and type(call.result) is not TensorRef:
            raise ValueError(
                f"recompute {how}: {call.path} returns several tensors, and what runs again "
                "returns one: let its forward return one, or use --recompute stage"
            )
    return paths


def recompute(model: Module, graph: Graph, how: str) -> None:
    """Gives activation checkpointing to the modules that --recompute selects."""
    modules = dict(model.named_modules())
    for path in recomputed_paths(graph, how):
        as_recomputed(modules[path])
