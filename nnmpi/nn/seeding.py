"""The seed of new modules, and counters of the modules and random tensors made so far."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple


class SeedState(NamedTuple):
    """The seed, and the counters from which, with the seed, the next layer that stands alone or the
    next random tensor draws its values, so that successive ones differ."""

    seed: int = 0
    number: int = 0  # modules constructed, and tensors filled by `nn.init`, so far
    draws: int = 0  # random tensors drawn so far


FIRST = SeedState()

seed_state: ContextVar[SeedState] = ContextVar("nnmpi_construction", default=FIRST)
"""The seed state of this thread: ranks may be threads, and each of them counts its own modules."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """In this context, modules are constructed with this seed and counted from 0: the same code
    gives the same weights each time, also if it reads them early."""
    token = seed_state.set(SeedState(seed))
    try:
        yield
    finally:
        seed_state.reset(token)


def manual_seed(seed: int) -> None:
    """Sets the seed of modules and random tensors that this thread makes from now on. A Trainer
    uses the seed of its Config, and NumPy's generators are not affected."""
    seed_state.set(SeedState(seed))


class Generator:
    """A source of random numbers with a seed and a counter of its own, for `generator=`. The
    numbers follow from these two, on any device; so a generator is saved as two integers."""

    def __init__(self, device: Any = "cpu") -> None:
        self.device, self._state = device, FIRST

    def manual_seed(self, seed: int) -> "Generator":
        """Sets the seed, starts the counter again, and returns the generator."""
        self._state = SeedState(int(seed))
        return self

    def initial_seed(self) -> int:
        """Returns the seed."""
        return self._state.seed

    def get_state(self) -> SeedState:
        """Returns the seed and the counters."""
        return self._state

    def set_state(self, state: SeedState) -> "Generator":
        """Restores a state that `get_state` has returned, and returns the generator."""
        self._state = SeedState(*state)
        return self

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """A context whose random tensors are drawn from this generator."""
        token = seed_state.set(self._state)
        try:
            yield
        finally:
            self._state = seed_state.get()
            seed_state.reset(token)


def drawing_from(generator: Generator | None) -> AbstractContextManager[None]:
    """A context that draws random tensors from the generator, or the thread's state."""
    if generator is None:
        return nullcontext()
    if not isinstance(generator, Generator):
        raise TypeError(
            f"generator is of type {type(generator).__name__}: give "
            "nnmpi.Generator().manual_seed(seed)"
        )
    return generator.drawing()


def next_seed_state() -> SeedState:
    """Returns the seed state for a module or `nn.init`, and counts a module."""
    seed, number, draws = current = seed_state.get()
    seed_state.set(SeedState(seed, number + 1, draws))
    return current


def next_draw() -> SeedState:
    """Returns the seed state for a random tensor, and counts that, not modules."""
    seed, number, draws = current = seed_state.get()
    seed_state.set(SeedState(seed, number, draws + 1))
    return current


def refuse_late_seed(module: str, seed: int, parameters: Iterable[tuple[str, Any]]) -> None:
    """Raises ValueError if a parameter already has values of a seed other than `seed`."""
    for name, p in parameters:
        if p.seed is not None and p.seed != seed:
            raise ValueError(
                f"{module}.seed = {seed}: {name} has been drawn from seed {p.seed}; set the seed "
                f"before weights are read or used, or construct the model within "
                f"`with nnmpi.seeded({seed}):`"
            )
