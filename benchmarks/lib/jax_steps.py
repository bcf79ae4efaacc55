"""Training steps of JAX: one compiled function each, in which arrays are updated in place.

lax and jax.numpy alone: value_and_grad, Adam, donated buffers. Steps run in the thread that calls
them: with `jax_cpu_enable_async_dispatch`, W3 takes 1.6 times as long.
"""

from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import jax
from jax import Array
from jax import numpy as jnp

from lib import jax_nn
from lib.models import WORKLOADS, Batch, Workload, batch, drawn
from lib.workloads import RATE, Steps, batches_of

jax.config.update("jax_cpu_enable_async_dispatch", False)

Sum = Callable[[list[Array]], list[Array]]
"""What becomes of a rank's gradients when those of all ranks are summed."""


def alone(grads: list[Array]) -> list[Array]:
    """The gradients of one process."""
    return grads


def loss_of(w: Workload, output: Array, target: Array) -> Array:
    """The mean squared error, or the mean cross-entropy of labels."""
    if w.classes is None:
        return jnp.square(output - target).mean()
    log_p = jax.nn.log_softmax(output)
    return -jnp.take_along_axis(log_p, target[:, None], 1).mean()


def adam(
    p: Array, g: Array, m: Array, v: Array, t: Array, lr: float, decay: float
) -> tuple[Array, ...]:
    """One parameter's step number t, of AdamW with a decay: the parameter and both moments."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    rate = lr / (1 - 0.9**t)
    p = p * (1 - lr * decay) if decay else p
    return p - rate * m / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8), m, v


class Training:
    """A model and its optimizer; a call is a training step, and returns the loss when it is there.

    summed: sums gradients over ranks
    """

    def __init__(self, w: Workload, lr: float, summed: Sum = alone) -> None:
        model = jax_nn.Sequential(*w.layers(jax_nn))
        parameters, buffers = model.parameters(), model.buffers()

        def loss(p: list[Array], sums: list[Array], x: Array, y: Array) -> Any:
            for variable, value in zip([*parameters, *buffers], [*p, *sums], strict=True):
                variable.set(value)
            return loss_of(w, model(x), y), [variable.get() for variable in buffers]

        def step(state: Any, x: Array, y: Array) -> Any:
            (p, sums), (ms, vs), t = state
            (value, sums), grads = jax.value_and_grad(loss, has_aux=True)(p, sums, x, y)
            new = [
                adam(*each, t, lr, w.weight_decay)
                for each in zip(p, summed(grads), ms, vs, strict=True)
            ]
            p, ms, vs = map(list, zip(*new, strict=True))
            return ((p, sums), (ms, vs), t + 1), value

        p = [variable.in_memory(value) for variable, value in drawn(parameters)]
        moments = [0 * a for a in p], [0 * a for a in p]
        self._state = (p, [variable.get() for variable in buffers]), moments, jnp.float32(1)
        self._step = jax.jit(step, donate_argnums=0)

    def __call__(self, x: Array, y: Array) -> Array:
        self._state, loss = self._step(self._state, x, y)
        return loss.block_until_ready()


def arrays(batch: Batch) -> tuple[Array, ...]:
    """A batch with images as (N, H, W, C)."""
    ordered = (a.transpose(0, 2, 3, 1) if a.ndim == 4 else a for a in batch)
    return tuple(jnp.asarray(a.copy()) for a in ordered)


def jax_step(w: Workload) -> Callable[[], Array]:
    """A training step, from a batch in memory to the update."""
    training, arguments = Training(w, 1e-4), arrays(batch(w))
    return lambda: training(*arguments)


def jax_steps(case: str, per_rank: int, ranks: int, rank: int, summed: Sum = alone) -> Steps:
    """Training steps of a rank, or of one process for all."""
    training = Training(WORKLOADS[case], RATE, summed)
    batches = cycle([arrays(found) for found in batches_of(case, per_rank, ranks, rank)])

    def run(steps: int) -> None:
        for arguments in islice(batches, steps):
            training(*arguments)

    return run


def mean_over(comm: Any) -> Sum:
    """Gradients averaged over the ranks of an MPI communicator, by mpi4jax."""
    import mpi4jax
    from mpi4py import MPI

    return lambda grads: [mpi4jax.allreduce(g, op=MPI.SUM, comm=comm) / comm.size for g in grads]
