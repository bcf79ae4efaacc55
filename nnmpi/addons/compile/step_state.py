"""StepState: all that a compiled training step (`nnmpi.compile`) may change, so that it is run
twice from the same state, and what it returns and leaves is compared bit by bit."""

from typing import Any

import numpy as np

from nnmpi.addons.compile.recorded_step import array_of_argument, set_gradients
from nnmpi.addons.compile.step_code import StepCode
from nnmpi.addons.compile.step_replay import StepReplay
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, is_array
from nnmpi.autograd import Tensor
from nnmpi.nn.graph import mapped
from nnmpi.nn.seeding import seed_state
from nnmpi.nn.users_code import compared


class StepState:
    """A copy on the host of everything that a training step may change: values, gradients, buffers,
    optimizers, and counters of random numbers. By it, the step is run twice from the same state."""

    def __init__(self, replay: StepReplay, code: StepCode) -> None:
        self._memory, self._code = replay.memory, code
        self._arrays = [*map(_copied, replay.memory)]
        self._states = [{k: _copied(a) for k, a in o.state.items()} for o in code.optimizers]
        self._steps = [[*optimizer.steps] for optimizer in code.optimizers]
        self._present = [p.has_grad for p in code.parameters]
        self._passes = [m.passes for m in code.all_modules]
        self._seed_state = seed_state.get()

    def restore(self) -> None:
        """Puts the copied state back into parameters, buffers, optimizers and counters."""
        for array, copy in zip(self._memory, self._arrays, strict=True):
            _write(array, copy)
        for optimizer, state, steps in zip(
            self._code.optimizers, self._states, self._steps, strict=True
        ):
            for name, array in state.items():
                _write(optimizer.state[name], array)
            optimizer.set_steps(steps)
        set_gradients(self._code.parameters, self._present)
        seed_state.set(self._seed_state)
        for module, passes in zip(self._code.all_modules, self._passes, strict=True):
            object.__setattr__(module, "passes", passes)

    def is_same(self, other: "StepState") -> bool:
        """True if another copy of the state has the same bits. Where a gradient is None, the
        contents of its memory are not compared."""
        facts = self._present, self._passes, self._seed_state, self._steps
        if facts != (other._present, other._passes, other._seed_state, other._steps):
            return False
        absent = [
            p.grad_memory for p in self._code.parameters if p._requires_grad and not p.has_grad
        ]
        skipped = {id(array) for array in absent}
        pairs = zip(self._memory, self._arrays, other._arrays, strict=True)
        return all(
            a.tobytes() == b.tobytes() for array, a, b in pairs if id(array) not in skipped
        ) and bits_of(self._states) == bits_of(other._states)


def _copied(array: Array) -> np.ndarray:
    return array.copy() if isinstance(array, np.ndarray) else backend.to_host(array)


def _write(array: Array, values: np.ndarray) -> None:
    array[...] = backend.of(array).asarray(values)  # a step may have moved an optimizer's state


def bits_of(result: Any) -> Any:
    """Returns the results of a step, of any nested structure, with the bits of each array and its
    device in its place, for comparison of two runs."""

    def described(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor | np.generic) and not is_array(leaf):
            return compared(leaf)
        array = array_of_argument(leaf)
        return backend.of(array).name, array.tobytes()

    return mapped(described, result)
