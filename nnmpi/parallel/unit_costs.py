"""Measures the seconds and bytes of each unit of a model, for one micro-batch on one rank.

The micro-batch passes through the graph unit by unit, so only one unit's parameters are in memory
at a time. Afterwards the model is as before: parameters without values get random ones for the
measurement only; gradients, running statistics and counters of passes are restored.
"""

import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.arrays import backend, devices
from nnmpi.arrays.backend import Array, Backend
from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import tensor
from nnmpi.comm import Comm
from nnmpi.data import Inputs
from nnmpi.data.inputs import arrays, each, parts
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.nn.passes import UNTRACKED, Pass
from nnmpi.nn.registries import buffers_of
from nnmpi.nn.seeding import seeded
from nnmpi.nn.segment import segment
from nnmpi.nn.tracing import unchanged
from nnmpi.parallel.arrangement.partition import SplitPoints, Unit, bounds
from nnmpi.parallel.step.ports import Tensors
from nnmpi.parallel.step.stage import JoinedOutputs, forward, needing_gradients

LIMIT = 0.5
"""Once the passes of a unit have taken that many seconds, they are not repeated again."""


Timer: TypeAlias = Callable[[], float]
"""Returns the time in seconds."""


class UnitCost(NamedTuple):
    """The cost of a unit or stage in one micro-batch; all floats, so that it can be sent as a row.

    forward           seconds of its forward pass
    input_gradient    seconds of the gradient of its input; 0 if the input needs none
    weight_gradient   seconds of the gradients of its parameters; 0 if none is trained
    parameter_bytes   of the values of its parameters, trained or not
    activation_bytes  that a forward pass adds: its output, and the arrays that the backward pass
                      needs; for a stage, including its input
    input_bytes       of all its input tensors, which are messages if a stage begins with it
    """

    forward: float
    input_gradient: float
    weight_gradient: float
    parameter_bytes: float
    activation_bytes: float
    input_bytes: float

    @property
    def seconds(self) -> float:
        """The seconds of the forward pass and of the backward pass together."""
        return self.forward + self.input_gradient + self.weight_gradient

    def scaled(self, factor: float) -> "UnitCost":
        """Returns the cost of `factor` times as many samples."""
        more = UnitCost(*(n * factor for n in self))
        return more._replace(parameter_bytes=self.parameter_bytes)


class UnitCosts(NamedTuple):
    """The costs of all units of a model in a micro-batch of `samples` samples.

    begins   the index of the first layer of each unit"""

    samples: int
    begins: tuple[int, ...]
    costs: tuple[UnitCost, ...]

    def scaled(self, samples: int) -> "UnitCosts":
        """Returns approximate costs for micro-batches with another number of samples."""
        scaled = (cost.scaled(samples / self.samples) for cost in self.costs)
        return UnitCosts(samples, self.begins, (*scaled,))


def stage_costs(costs: Sequence[UnitCost], cut: SplitPoints) -> list[UnitCost]:
    """Returns the sum of costs in each stage; `cut` says at which units stages begin. Stage 0 needs
    no gradient of its input, so that of its units counts as part of its weight gradient."""
    of_stages = list[UnitCost]()
    for a, b in bounds(cut, len(costs)):
        f, i, w, parameters, activations, _ = map(sum, zip(*costs[a:b], strict=True))
        if not a:
            i, w = 0, i + w
        first = costs[a].input_bytes
        of_stages.append(UnitCost(f, i, w, parameters, activations + first, first))
    return of_stages


class Timing(NamedTuple):
    """Settings for measuring passes: the shortest of `repeats` times after a warm-up counts.

    together   the Comms among whose ranks layers are divided; these make the passes together
    clock      returns seconds; the times include communication, unless it stops while a rank waits
    check      is called before each unit is measured; it may raise an error to stop
    """

    repeats: int = 5
    together: Sequence[Comm] = ()
    clock: Timer = perf_counter
    check: Callable[[], None] = lambda: None


REPEATED = Timing()


def profile(
    model: Module,
    graph: Graph,
    units: Sequence[Unit],
    x: Inputs,
    on: Backend,
    timing: Timing = REPEATED,
    dtype: Any = None,
) -> list[UnitCost]:
    """Measures the cost of each unit of a model for a micro-batch x; `dtype` is that of the
    parameters, by default that of x.

    The costs add up to that of a pass through the whole model if the process keeps freed memory
    (`blas.tune`), as it does in a run.
    """
    costs, dtype = list[UnitCost](), dtype or arrays(x)[0].dtype
    enters: Tensors = each(partial(tensor, on=on), x)
    for unit in units:
        timing.check()
        with seeded(0):  # so that it does not count as a module of the user
            module = segment(model, graph, unit.nodes)
        with unchanged(module), np.errstate(all="ignore"):
            module.to(dtype, on).train()
            module.zero_grad()
            leaves, times = _fastest(unit, module, enters, on, timing)
            parameters = sum(p.array.nbytes for p in module.parameters())
            added = _bytes_added(module, enters, on, timing.together)
        ahead, back, weights = times
        weights = weights if unit.is_trained else 0.0
        arriving = sum(t.array.nbytes for _, t in parts(enters))
        costs.append(UnitCost(ahead, back, weights, parameters, added, arriving))
        enters = leaves
    return costs


_PASS = Pass(0, None, UNTRACKED)


def _root(enters: Tensors, leaves: Any) -> tuple[Tensor, Array]:
    """Returns the tensor from which the backward pass through a part of the model starts, its
    output or joined `leaves`, and a gradient of ones for it."""

    def ones(t: Tensor) -> Array:
        return backend.xp_of(t.array).ones_like(t.array)

    if isinstance(leaves, Tensor):
        return leaves, ones(leaves)
    entering = {id(t) for _, t in parts(enters)}
    root = JoinedOutputs([t for _, t in parts(leaves) if id(t) not in entering])
    return root, root.seed([ones(t) for t in root.parts])


def _fastest(
    unit: Unit, module: Module, x: Tensors, on: Backend, timing: Timing
) -> tuple[Tensors, list[float]]:
    """Returns the outputs of a unit, which are the input of the next, and the shortest seconds of
    each pass: forward, input gradient, weight gradients.

    The outputs require gradients if this unit or one before it is trained. Gradients are not
    cleared between repeats: in a step, all micro-batches except the first add to them."""
    start, is_late = timing.clock(), np.zeros(1, np.int64)
    y, _ = _passes(module, x, on, timing.clock)
    needing = needing_gradients(x)
    if isinstance(y, Tensor) and needing and all(t.grad_array is None for t in needing):
        raise ValueError(
            f"layer {unit.path} ({unit}): no gradient flows from its output to its input, so no "
            "layer before it would be trained; compute the output without detach() and no_grad"
        )
    leaves = each(lambda t: Tensor(t.array, t._requires_grad), y)
    measured = [_passes(module, x, on, timing.clock)[1]]
    while len(measured) < timing.repeats:
        is_late[0] = timing.clock() - start > LIMIT
        for comm in timing.together:  # all ranks make the same number of passes
            comm.all_reduce(is_late, "doubling")
        if is_late[0]:
            break
        measured.append(_passes(module, x, on, timing.clock)[1])
    return leaves, [min(times) for times in zip(*measured, strict=True)]


def _passes(
    module: Module, enters: Tensors, on: Backend, clock: Timer
) -> tuple[Any, tuple[float, ...]]:
    """Runs one forward and one backward pass through `module` on `enters`. Returns its output, and
    seconds: of the forward pass, of the input gradient and of the weight gradients."""
    inputs = needing_gradients(enters)
    for t in inputs:
        t.grad_array = None
    for m, name, buffer in buffers_of(module.modules()):
        setattr(m, name, buffer._array)  # without the history of an earlier pass
    began = _now(on, clock)
    y = forward(module, enters, _PASS)
    ahead, (root, seed) = _now(on, clock) - began, _root(enters, y)
    if not root._requires_grad:
        return y, (ahead, 0.0, 0.0)
    began = _now(on, clock)
    pending = root.backward(seed, until=inputs or None)
    middle = _now(on, clock)
    if pending is None:
        return y, (ahead, 0.0, middle - began)
    pending.finish()
    return y, (ahead, middle - began, _now(on, clock) - middle)


def _now(on: Backend, clock: Timer) -> float:
    """Returns the clock's seconds, after waiting until the device has completed its work."""
    backend.to_host(on.xp.zeros(1))
    return clock()


def _bytes_added(module: Module, x: Tensors, on: Backend, together: Sequence[Comm]) -> int:
    """Returns the bytes by which memory in use grows in a forward pass, while the output is alive.
    The ranks of `together` call it at the same time: ranks that are threads share one tracemalloc
    trace, and would crash if one ended it while another one computes."""
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    added = list[int]()
    for _ in range(3):  # the median, since threads of other ranks allocate and free too
        used = devices.used_memory(on)
        y = forward(module, x, _PASS)
        added.append(devices.used_memory(on) - used)
        del y
    for comm in together:
        comm.barrier()
    if not was_tracing:
        tracemalloc.stop()
    for comm in together:
        comm.barrier()
    return max(sorted(added)[1], 0)
