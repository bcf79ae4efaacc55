"""Pass: what a forward pass depends on besides its input: step and samples."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args

import numpy as np

from nnmpi.arrays import backend, keyed
from nnmpi.arrays.backend import CPU, Array, Backend
from nnmpi.arrays.dtypes import is_float
from nnmpi.autograd.ops.norm import Moments
from nnmpi.autograd.recording import op_types, recording
from nnmpi.nn.seeding import SeedState

T = TypeVar("T")


class BatchStats(Protocol):
    """From which BatchNorm gets the statistics of a batch that several ranks may have."""

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        """Returns the moments (number of values, mean, sum of squared deviations) of the whole
        batch, given those of this rank's samples. `track` updates the running statistics with them:
        it is called once per forward pass, during this call or later."""

    def sum(self, sums: Array) -> Array:
        """Returns the sum of a 1-D array over all ranks that have samples of the batch."""


class Local:
    """BatchStats for a batch whose samples are all on this rank."""

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        track(local)
        return local

    def sum(self, sums: Array) -> Array:
        return sums


class Untracked(Local):
    """Statistics of this rank's samples; running statistics stay as they are."""

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        return local


class ReplayStats:
    """BatchStats for a forward pass that runs twice: the second run gets the results of the first,
    of `inner`, and neither communicates nor updates running statistics."""

    def __init__(self, inner: BatchStats) -> None:
        self.inner, self._results = inner, list[Any]()
        self._replayed: Iterator[Any] | None = None

    def replay(self) -> None:
        """Starts the second run, which gets the results of the first one in order."""
        self._replayed = iter(self._results)

    def computed_once(self, make: Callable[[], T]) -> T:
        """Returns make() of the first run, in both runs."""
        if self._replayed is None:
            result = make()
            self._results.append(result)
            return result
        try:
            kept: T = next(self._replayed)
            return kept
        except StopIteration:
            raise ValueError(
                "forward asks for more batch statistics when it runs a second time on the same "
                "samples, or on a part of them: let it call the same layers in every pass"
            ) from None

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        return self.computed_once(lambda: self.inner.moments(local, track))

    def sum(self, sums: Array) -> Array:
        return self.inner.sum(sums)


LOCAL: BatchStats = Local()
UNTRACKED: BatchStats = Untracked()


class Pass(NamedTuple):
    """The state of a forward pass, on which random numbers and batch statistics depend.

    samples  the row numbers in the data set of the samples on this rank; None: 0, 1, 2, ...
    counted  whether this pass counts as a step, so that the next one draws other random numbers:
             True as soon as a module in training mode runs in it, and in passes of a trainer
    batch    the number of samples of the whole batch, on all ranks; None: the samples of the input
    around   called as around(module, forward, *args) in place of each `forward` while the graph of
             a model is recorded
    again    True in the second run of a function that runs again in the backward pass"""

    step: int
    samples: np.ndarray | None = None
    batch_stats: BatchStats = LOCAL
    counted: bool = True
    batch: int | None = None
    around: Callable[..., Any] | None = None
    again: bool = False

    def is_in_first(self, steps: int) -> bool:
        return self.step < steps

    def key(self, seed: int, purpose: str, *names: str) -> keyed.Key:
        """Returns the key of random numbers for a purpose, such as "dropout", in this step: made of
        the model's seed, the step, the purpose and names, such as the path of a layer."""
        return keyed.key(seed, purpose, self.step, *names)

    def tensor_key(self, drawn: SeedState) -> keyed.Key:
        """Returns the key of the next random tensor of a program, by the seed state."""
        return keyed.key(drawn.seed, "tensor", drawn.draws)


Combine = Literal["mean", "sum"]
"""How a buffer changes if parts of a batch run separately (see `Module.register_buffer`).

mean  it becomes the mean of the results of the parts, weighted by their samples
sum   it changes by the sum of the changes of the parts
"""


def checked_combine(combine: Combine) -> Combine:
    """Returns `combine`; raises ValueError unless it is "mean" or "sum"."""
    if combine not in get_args(Combine):
        raise ValueError(f"combine {combine!r} must be one of {', '.join(get_args(Combine))}")
    return combine


@contextmanager
def combined_buffers(
    module: object, combine: Mapping[str, Combine], current: Pass
) -> Iterator[None]:
    """A context for the `forward` of a module that changes buffers, such as running statistics.
    With several ranks or micro-batches, each call of `forward` sees some samples of a batch, and
    changes a copy; the `batch_stats` of `current` combine the results as `combine` says, by buffer.

    If `forward` runs again in the backward pass, it starts from the values before the first run,
    and what it changes is dropped. In both runs it gets copies, since autograd may keep them."""
    stats, n = current.batch_stats, 1 if current.samples is None else len(current.samples)
    buffers = {name: t for name in combine if (t := getattr(module, name)) is not None}
    arrays = {name: t._array for name, t in buffers.items()}
    old = {name: array.copy() for name, array in arrays.items()}
    if isinstance(stats, ReplayStats):
        old = stats.computed_once(partial(dict, old))
    for name, array in old.items():
        setattr(module, name, array.copy())
    try:
        yield
    finally:
        after = {name: getattr(module, name)._array for name in arrays}
        for name, buffer in buffers.items():
            setattr(module, name, buffer)
    for name, array in arrays.items():
        if after[name].shape != array.shape:
            raise ValueError(
                f"{name}: `forward` has changed the shape of this buffer from {array.shape} to "
                f"{after[name].shape}, so parts of a batch cannot be combined; keep a cache as a "
                "plain attribute"
            )
        sums = combine[name] == "sum"
        xp = backend.xp_of(array)
        row = xp.asarray(after[name] - old[name] if sums else after[name], "float64").reshape(-1)

        # defaults, since `track` may be called after the loop, when all parts of the batch have run
        def track(moments: Moments, array: Array = array, sums: bool = sums) -> None:
            new = moments.mean.reshape(array.shape)
            new = array + new * moments.n if sums else new
            array[...] = new if is_float(array.dtype) else backend.xp_of(new).rint(new)

        stats.moments(Moments(n, row / max(n, 1) if sums else row, xp.zeros_like(row)), track)


current_pass: ContextVar[Pass | None] = ContextVar("nnmpi_pass", default=None)
"""The pass under way, set and counted by `Module.__call__` if no trainer does."""


@contextmanager
def variables_set(*pairs: tuple[ContextVar[Any], Any]) -> Iterator[None]:
    """A context in which context variables have other values, given as (variable, value)."""
    tokens = [(variable, variable.set(value)) for variable, value in pairs]
    try:
        yield
    finally:
        for variable, token in tokens:
            variable.reset(token)


# ---- the key of a recorded pass: with an equal key, the same kernels are called
#
# A Trainer and nnmpi.compile both make it of what is below, and of values that users' code reads
# (`users_code.py`). A Trainer adds facts about the micro-batch, such as whether gradients are added
# to earlier ones; a compiled step adds which gradients exist.


def key_of_context(on: Backend = CPU) -> tuple[Any, ...]:
    """Returns the settings of the program that decide which kernels a pass calls on a backend:
    whether autograd records, the types of autocast, and on a GPU the type of float32 products."""
    types, products = op_types.get(), on.is_host or on.xp._core.get_compute_type("float32")
    return recording.get(), types and types.afresh(), products  # keys outlive copies that are kept


KEY_OF_PARAMETER = attrgetter("_requires_grad", "store")
KEY_WITH_GRADIENT = attrgetter("_requires_grad", "store", "has_grad")
KEY_OF_MODULE = attrgetter("_changes", "training")
