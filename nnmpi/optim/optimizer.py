"""SGD, Adam and AdamW over flat buffers."""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

from nnmpi import backend
from nnmpi.autograd import tape
from nnmpi.backend import Array
from nnmpi.kernels import steps
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.store import FlatStore, flatten


class FlatRange(NamedTuple):
    """Parameters i..j-1, which one update of flat memory moves.

    They are adjacent in a store, from `start` to `end`, and have equal step counts.
    """

    i: int
    j: int
    store: FlatStore
    start: int
    end: int


class Operands(NamedTuple):
    """What one update reads and writes: values, gradients, running sums, the number of the step."""

    values: Array
    grads: Array
    state: list[Array]
    t: int


class Optimizer:
    """The base of all optimizers: finds ranges of flat memory, and counts the steps of parameters.

    A parameter without a gradient is not updated, and its step not counted.
    """

    sums = 0  # the number of running sums per parameter

    def __init__(self, parameters: Iterable[Parameter], lr: float) -> None:
        self.parameters = list(parameters)
        if not self.parameters:
            raise ValueError("an optimizer needs at least one parameter; this list is empty")
        if len({id(p) for p in self.parameters}) < len(self.parameters):
            raise ValueError("a parameter is in this optimizer's list twice: give each once")
        for i, p in enumerate(self.parameters):
            if not isinstance(p, Parameter):
                raise ValueError(
                    f"an optimizer needs nn.Parameter objects, as from model.parameters(); "
                    f"number {i} of this list is a {type(p).__name__}"
                )
        self.lr = non_negative("lr", lr)
        flatten(self.parameters)
        self.steps = [0] * len(self.parameters)
        self.offsets = self._offsets()
        self._ranges: list[FlatRange] = []
        self._ranges_of: list[tuple[bool, Any]] = []
        like = self.parameters[0].data
        zeros = backend.xp_of(like).zeros
        self.state = [zeros(self.offsets[-1], like.dtype) for _ in range(self.sums)]

    def __getstate__(self) -> dict[str, Any]:
        """All but the stores, which the first step of a copy creates again."""
        return self.__dict__ | {"_ranges": [], "_ranges_of": []}

    def zero_grad(self) -> None:
        """Clear the gradients. No memory is written: the next backward pass overwrites it."""
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        """Update all parameters that have a gradient."""
        if self._ranges_of != self._dependencies():
            flatten(self.parameters)  # copied parameters are not in a flat store
            self._check_offsets()
            self._ranges, self._ranges_of = list(self._find_ranges()), self._dependencies()
            self._convert_state()
            for p in self.parameters:
                p.seed = None if p.has_grad else p.seed  # no longer the values that were drawn
        written = tape.tick()
        for i, j, store, start, end in self._ranges:
            t, at = self.steps[i] + 1, self.offsets[i]
            for values, grads in store.owned(start, end):
                n = len(values)
                self._update(Operands(values, grads, [s[at : at + n] for s in self.state], t))
                at += n
            self.steps[i:j] = [t] * (j - i)
            for p in self.parameters[i:j]:
                p.memory.written = written

    def _offsets(self) -> list[int]:
        """Where each parameter starts in a running sum, which has only what this rank updates."""
        return list(accumulate((_owned_size(p) for p in self.parameters), initial=0))

    def _check_offsets(self) -> None:
        """Refuses a store in which this rank updates another part of the parameters than before."""
        if self.sums and self.offsets != self._offsets():
            raise ValueError(
                "this optimizer has running sums for a part of the parameters only, as one of "
                "several ranks; create another optimizer over model.parameters()"
            )

    def _update(self, x: Operands) -> None:
        """One step in one stretch of memory; subclasses define it."""
        raise TypeError(f"{type(self).__name__} does not define _update")

    def _dependencies(self) -> list[tuple[bool, Any]]:
        """What the ranges depend on."""
        return [(p.has_grad, p.store) for p in self.parameters]

    def _convert_state(self) -> None:
        """Move the running sums to the type and the device of the parameters."""
        like = self.parameters[0].data
        self.state = [backend.of(like).asarray(s, like.dtype) for s in self.state]

    def _find_ranges(self) -> Iterator[FlatRange]:
        """The longest ranges of parameters that have a gradient."""
        found: FlatRange | None = None
        for i, p in enumerate(self.parameters):
            if not p.has_grad:
                continue
            store = p.store
            assert isinstance(store, FlatStore)
            start, end = store.spans[p.index]
            if (
                found is not None
                and (found.j, found.store, found.end) == (i, store, start)
                and self.steps[found.i] == self.steps[i]
            ):
                found = found._replace(j=i + 1, end=end)
                continue
            if found is not None:
                yield found
            found = FlatRange(i, i + 1, store, start, end)
        if found is not None:
            yield found


def non_negative(name: str, value: float) -> float:
    """The value; raises ValueError unless it is finite and at least 0."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} {value} must be a number and at least 0")
    return value


def _owned_size(p: Parameter) -> int:
    """The number of its elements, padding included, that this rank updates."""
    assert isinstance(p.store, FlatStore)
    return sum(len(values) for values, _ in p.store.owned(*p.store.spans[p.index]))


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, Nesterov momentum and weight decay."""

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float,
        momentum: float = 0.0,
        *,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        if nesterov and not momentum:
            raise ValueError("nesterov=True needs a momentum above 0")
        self.sums = 1 if momentum else 0
        super().__init__(parameters, lr)
        self.momentum, self.nesterov = non_negative("momentum", momentum), nesterov
        self.weight_decay = non_negative("weight_decay", weight_decay)

    def _update(self, x: Operands) -> None:
        velocity = x.state[0] if x.state else None
        if self.momentum and velocity is None:
            raise ValueError(
                f"momentum {self.momentum} needs a running sum, which this SGD does not have: "
                "create it with a momentum above 0, which may then change between steps"
            )
        c = steps.Sgd(self.lr, self.momentum, self.weight_decay, self.nesterov)
        steps.sgd(x.values, x.grads, velocity, c)


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015); weight decay is added to the gradient."""

    sums = 2
    decoupled = False

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if not all(0 <= b < 1 for b in betas):
            raise ValueError(f"betas {betas} must be at least 0 and less than 1")
        super().__init__(parameters, lr)
        if non_negative("eps", eps) == 0:
            raise ValueError(
                "eps 0 divides 0 by 0 where a gradient is 0; give one above 0, like 1e-8"
            )
        self.betas, self.eps = betas, eps
        self.weight_decay = non_negative("weight_decay", weight_decay)

    def _update(self, x: Operands) -> None:
        c = steps.Adam(self.lr, *self.betas, self.eps, self.weight_decay, self.decoupled, x.t)
        M, V = x.state
        steps.adam(x.values, x.grads, M, V, c)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    decoupled = True

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
"""The optimizers by their names on the command line."""
