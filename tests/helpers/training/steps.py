"""Steps of loops of one's own: models and batches for them, and what they return and leave."""

from collections.abc import Callable
from typing import Any

import numpy as np

from nnmpi import Tensor, nn, optim

rng = np.random.default_rng(0)


Step = Callable[..., Any]


Made = tuple[Step, list[nn.Module], list[optim.Optimizer]]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def digits() -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((8, 6)).astype("float32"), rng.integers(0, 3, 8)


def bits(made: Made) -> list[bytes]:
    _, models, optimizers = made
    states = [model.state_dict() for model in models]
    states += [optimizer.named_state() for optimizer in optimizers]
    return [np.asarray(value).tobytes() for state in states for value in state.values()]


def results(value: Any) -> list[Any]:
    if isinstance(value, Tensor | np.ndarray):
        return [(value.array if isinstance(value, Tensor) else value).tobytes()]
    if isinstance(value, dict):
        return [(name, results(item)) for name, item in value.items()]
    return [results(item) for item in value] if isinstance(value, tuple) else [value]
