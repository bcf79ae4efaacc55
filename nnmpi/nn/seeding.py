"""The seed of new modules, and the number of modules that were constructed before them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple


class SeedState(NamedTuple):
    """The seed and the counts on which numbers of the next module or random tensor depend."""

    seed: int = 0
    number: int = 0  # of modules constructed, and tensors that `nn.init` has filled, before
    draws: int = 0  # of random tensors before


FIRST = SeedState()

seed_state: ContextVar[SeedState] = ContextVar("nnmpi_construction", default=FIRST)
"""The next construction in this thread; ranks may be threads, and each of them counts its own."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Modules that are constructed within it have this seed, and are counted from 0.

    The same code within it gives the same weights each time, also if it reads or changes weights
    before their layers are part of a model.
    """
    token = seed_state.set(SeedState(seed))
    try:
        yield
    finally:
        seed_state.reset(token)


def manual_seed(seed: int) -> None:
    """Modules and random tensors that are made from here on, in this thread, have this seed.

    Those that exist keep theirs, a Trainer has that of its Config, and NumPy's generators are
    other ones.
    """
    seed_state.set(SeedState(seed))


def next_seed_state() -> SeedState:
    """Count a module that is being constructed, or a tensor that `nn.init` fills."""
    current = seed_state.get()
    seed_state.set(current._replace(number=current.number + 1))
    return current


def next_draw() -> SeedState:
    """Count a random tensor, on which no weights depend."""
    current = seed_state.get()
    seed_state.set(current._replace(draws=current.draws + 1))
    return current


def refuse_late_seed(module: str, seed: int, parameters: Iterable[tuple[str, Any]]) -> None:
    """Raises ValueError if a parameter has values that were drawn from another seed."""
    for name, p in parameters:
        if p.seed is not None and p.seed != seed:
            raise ValueError(
                f"{module}.seed = {seed}: {name} has been drawn from seed {p.seed}; set the seed "
                f"before weights are read or used, or construct the model within "
                f"`with nnmpi.seeded({seed}):`"
            )
