"""PyTorch's `Generator`: a seed and a counter of its own for random orders."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from nnmpi.nn.seeding import SeedState, seed_state


class Generator:
    """A source of random orders that does not depend on what else the program draws.

    `random_split`, samplers and a DataLoader take it as `generator`.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device, self._state = device, SeedState()

    def manual_seed(self, seed: int) -> Self:
        """Sets the seed, and returns the generator."""
        self._state = SeedState(seed)
        return self

    def initial_seed(self) -> int:
        """Returns the seed."""
        return self._state.seed


@contextmanager
def drawn_from(generator: Generator | None) -> Iterator[None]:
    """A context in which random tensors are those of the generator, if there is one."""
    if generator is None:
        yield
        return
    if not isinstance(generator, Generator):
        raise TypeError(
            f"generator is of type {type(generator).__name__}: give "
            "nnmpi.Generator().manual_seed(seed)"
        )
    token = seed_state.set(generator._state)
    try:
        yield
    finally:
        generator._state = seed_state.get()
        seed_state.reset(token)
