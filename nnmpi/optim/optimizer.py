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


class Group(NamedTuple):
    """Parameters i..j-1: neighbours in one flat store, from `start` to `end`, equally old."""

    i: int
    j: int
    store: FlatStore
    start: int
    end: int


class Run(NamedTuple):
    """A group's flat memory as it is in this step, its part of each running sum, and its age."""

    values: Array
    grads: Array
    state: list[Array]
    t: int


class Optimizer:
    """What all optimizers share: parameters grouped into runs of flat memory, and counts of steps.

    A parameter without a gradient is left alone, and its count of steps with it.
    """

    sums = 0  # how many running sums a parameter has

    def __init__(self, parameters: Iterable[Parameter], lr: float) -> None:
        self.parameters = list(parameters)
        if not self.parameters:
            raise ValueError("an optimizer needs at least one parameter; this list is empty")
        if len({id(p) for p in self.parameters}) < len(self.parameters):
            raise ValueError("a parameter is in this optimizer's list twice: give each once")
        for i, p in enumerate(self.parameters):
            if not isinstance(p, Parameter):
                raise ValueError(
                    f"an optimizer moves nn.Parameter objects, as from model.parameters(); "
                    f"number {i} of this list is a {type(p).__name__}"
                )
        self.lr = check("lr", lr)
        flatten(self.parameters)
        self.steps = [0] * len(self.parameters)
        self.offsets = self._offsets()
        self._seen: list[tuple[bool, Any]] = []
        self._groups: list[Group] = []
        like = self.parameters[0].data
        zeros = backend.xp_of(like).zeros
        self.state = [zeros(self.offsets[-1], like.dtype) for _ in range(self.sums)]

    def __getstate__(self) -> dict[str, Any]:
        """What a copy takes along: not the stores, which its first step makes anew."""
        return self.__dict__ | {"_seen": [], "_groups": []}

    def zero_grad(self) -> None:
        """Clear the gradients: nothing is written, the next backward pass overwrites them."""
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        """Move every parameter that has a gradient."""
        if self._seen != self._see():
            flatten(self.parameters)  # a copied parameter is in no flat store yet
            self._check_owned()
            self._seen, self._groups = self._see(), list(self._grouped())
            self._follow()
        written = tape.tick()
        for i, j, store, start, end in self._groups:
            t, at = self.steps[i] + 1, self.offsets[i]
            for values, grads in store.owned(start, end):
                n = len(values)
                self._update(Run(values, grads, [s[at : at + n] for s in self.state], t))
                at += n
            self.steps[i:j] = [t] * (j - i)
            for p in self.parameters[i:j]:
                p.memory.written = written

    def _offsets(self) -> list[int]:
        """Where the numbers of each parameter that this rank moves lie in a running sum."""
        return list(accumulate((_owned(p) for p in self.parameters), initial=0))

    def _check_owned(self) -> None:
        """The running sums are of what this rank moves."""
        if self.sums and self.offsets != self._offsets():
            raise ValueError(
                "this optimizer held the state of a part of the parameters, which it shared out "
                "with other ranks; make another over model.parameters()"
            )

    def _update(self, run: Run) -> None:
        """One step of one run; every optimizer has its own."""
        raise TypeError(f"{type(self).__name__} does not define _update")

    def _see(self) -> list[tuple[bool, Any]]:
        """What the groups depend on."""
        return [(p.has_grad, p.store) for p in self.parameters]

    def _follow(self) -> None:
        """Keep the running sums where the parameters are and of their type: the model may move."""
        like = self.parameters[0].data
        self.state = [backend.of(like).asarray(s, like.dtype) for s in self.state]

    def _grouped(self) -> Iterator[Group]:
        """The longest groups of parameters that have a gradient."""
        group: Group | None = None
        for i, p in enumerate(self.parameters):
            if not p.has_grad:
                continue
            store = p.store
            assert isinstance(store, FlatStore)
            start, end = store.spans[p.index]
            if (
                group is not None
                and (group.j, group.store, group.end) == (i, store, start)
                and self.steps[group.i] == self.steps[i]
            ):
                group = group._replace(j=i + 1, end=end)
                continue
            if group is not None:
                yield group
            group = Group(i, i + 1, store, start, end)
        if group is not None:
            yield group


def check(name: str, value: float) -> float:
    """The value, which must be a finite number and not negative."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} {value} must be a number and at least 0")
    return value


def _owned(p: Parameter) -> int:
    """How many of its numbers, padding included, this rank moves."""
    assert isinstance(p.store, FlatStore)
    return sum(len(values) for values, _ in p.store.owned(*p.store.spans[p.index]))


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, Nesterov momentum and weight decay."""

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        if nesterov and not momentum:
            raise ValueError("nesterov=True needs a momentum above 0")
        self.sums = 1 if momentum else 0
        super().__init__(parameters, lr)
        self.momentum, self.nesterov = check("momentum", momentum), nesterov
        self.weight_decay = check("weight_decay", weight_decay)

    def _update(self, run: Run) -> None:
        velocity = run.state[0] if run.state else None
        if self.momentum and velocity is None:
            raise ValueError(
                f"momentum {self.momentum} needs a running sum, and this SGD was made without one: "
                "make it with a momentum above 0, which may then change between steps"
            )
        c = steps.Sgd(self.lr, self.momentum, self.weight_decay, self.nesterov)
        steps.sgd(run.values, run.grads, velocity, c)


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
        if check("eps", eps) == 0:
            raise ValueError("eps 0 makes 0/0 of a gradient of 0: it must be above 0, such as 1e-8")
        self.betas, self.eps = betas, eps
        self.weight_decay = check("weight_decay", weight_decay)

    def _update(self, run: Run) -> None:
        c = steps.Adam(self.lr, *self.betas, self.eps, self.weight_decay, self.decoupled, run.t)
        M, V = run.state
        steps.adam(run.values, run.grads, M, V, c)


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
