"""Training in 16 bits reaches the accuracy of float32."""

import pytest

from nnmpi import Config, Trainer
from nnmpi.arrays.dtypes import HALVES
from nnmpi.comm import comm_self
from nnmpi.io.output import NullReport


def accuracy(dtype: str, model: str, data: str, epochs: int) -> float:
    config = Config(dtype=dtype, model=model, data=data, epochs=epochs)
    with Trainer(config, comm=comm_self()) as trainer:
        return float(trainer.fit(NullReport())["accuracy"])


@pytest.mark.parametrize(
    ("model", "data", "epochs", "least", "margin"),
    [("iris-mlp", "iris", 100, 0.85, 0.034), ("digits-cnn", "digits", 3, 0.94, 0.015)],
)
def test_16_bits_are_as_accurate(
    model: str, data: str, epochs: int, least: float, margin: float
) -> None:
    """Within one flower of 30, and 5 digits of 360."""
    wanted = accuracy("float32", model, data, epochs)
    assert wanted > least
    for dtype in HALVES:
        assert accuracy(dtype, model, data, epochs) >= wanted - margin
