"""RoundUndo goes back to the beginning of a round until all ranks have ended it."""

import numpy as np

from nnmpi import Tensor, nn, optim, tensor
from nnmpi.addons.recovery.parallel.round_undo import RoundUndo


class Counts(nn.Module):
    """Assigns another array to its buffer in each forward pass."""

    def __init__(self) -> None:
        self.register_buffer("count", np.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        return x


def test_a_round_is_undone_until_it_is_final() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), Counts())
    optimizer = optim.Adam(model.parameters(), lr=0.1)

    def state() -> list[np.ndarray]:
        values = [array.copy() for array in model.state_dict().values()]
        return [*values, *optimizer.named_state().values()]

    def step() -> None:
        optimizer.zero_grad()
        (model(tensor(np.eye(3, dtype=np.float32))) ** 3).sum().backward()
        optimizer.step()

    def equal(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
        return all(map(np.array_equal, a, b))

    step()
    last, first = RoundUndo(optimizer, model), state()
    last.begin()
    step()
    last.restore()  # within the round
    assert equal(state(), first)
    last.begin()
    step()
    last.end(2)  # here, but perhaps not on all ranks
    assert (last.version, last.pending_version, last.decision) == (0, 2, None)
    last.restore()
    assert equal(state(), first)
    assert last.pending_version is None
    last.begin()
    step()
    second = state()
    last.end(2)
    last.finish([0.5, 0.0, 0.0])
    assert (last.version, last.pending_version, last.decision) == (2, None, (2, (0.5, 0.0, 0.0)))
    last.restore()
    assert equal(state(), second)
    assert not equal(second, first)
