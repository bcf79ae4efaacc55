"""Moving parameters by summed gradients, or not at all if a number among them is not finite."""

import numpy as np

from nnmpi import backend
from nnmpi.optim import Optimizer
from nnmpi.optim.clip import clip_factor
from nnmpi.parallel.executor import Facts
from nnmpi.parallel.stores.node import Single


class Mover:
    """Moves the parameters that this rank owns by gradients that are summed over the ranks."""

    def __init__(self, store: Single, optimizer: Optimizer, clip_norm: float | None) -> None:
        self._store, self._optimizer, self._clip_norm = store, optimizer, clip_norm

    def begin(self) -> None:
        """No gradient has arrived yet."""
        self._optimizer.zero_grad()

    def move(self, lr: float) -> Facts:
        """A step, if all is finite; the one place where a step waits for a device."""
        store = self._store
        xp = backend.xp_of(store.flat_grad)
        known = xp.append(store.flat_grad[: store.head], store.squares())
        loss, stop, *used, squares = backend.to_host(known).tolist()
        for p, times in zip(store.parameters, used, strict=True):
            p.has_grad = times > 0
        updated = np.isfinite(loss) and np.isfinite(squares)
        if updated:
            self._clip(squares)
            self._optimizer.lr = lr
            self._optimizer.step()
        store.settle()
        return Facts(loss, stop > 0, bool(updated))

    def _clip(self, squares: float) -> None:
        """As `optim.clip_grad_norm` does, by the norm over all ranks."""
        if self._clip_norm is None:
            return
        factor = clip_factor(squares**0.5, self._clip_norm)
        store = self._store
        for lo, hi in store.owned(store.spans[0][0], len(store.flat)):
            store.flat_grad[lo:hi] *= factor
