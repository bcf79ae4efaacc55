"""EmbeddingBag and Embedding's further options, beside PyTorch's."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, same_as_pytorch

import nnmpi
from nnmpi import nn

RNG = np.random.default_rng(0)
NUMBERS, WEIGHTS, STARTS = RNG.integers(0, 7, 20), RNG.standard_normal(20), [0, 3, 3, 10, 19]


@needs_torch
@pytest.mark.parametrize("is_matrix", [False, True], ids=["offsets", "a matrix"])
@pytest.mark.parametrize(
    ("mode", "padding", "last"), [*product(("sum", "mean", "max"), (None, 2, -1), (False, True))]
)
def test_values_and_gradients_are_pytorchs(
    mode: str, padding: int | None, last: bool, is_matrix: bool
) -> None:
    options: dict[str, Any] = {"mode": mode, "padding_idx": padding, "include_last_offset": last}
    starts, shape = np.array(STARTS + [20] * last), (4, 5) if is_matrix else (20,)

    def program(n: Any, layer: Any, factors: Any, numbers: Any, starts: Any) -> Any:
        weights = factors.view(shape) if mode == "sum" else None
        return layer(numbers.view(shape), None if is_matrix else starts, weights)

    make = lambda nn: nn.EmbeddingBag(7, 4, **options)  # noqa: E731
    same_as_pytorch(program, WEIGHTS, NUMBERS, starts, make=make)


def test_only_padding_gives_zeros() -> None:
    for mode in ("sum", "mean", "max"):
        bag = nn.EmbeddingBag(3, 2, mode=mode, padding_idx=1)
        assert bag(nnmpi.tensor([[1, 1], [1, 1]])).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_table_is_taken_and_frozen(kind: Any) -> None:
    table = nnmpi.tensor([[1.0, 2.0], [3.0, 5.0]])
    layer = kind.from_pretrained(table)
    assert not layer.weight.requires_grad
    assert layer(nnmpi.tensor([[1]])).reshape(-1).tolist() == [3, 5]
    layer = kind.from_pretrained(table, freeze=False, padding_idx=0)
    assert (layer.weight.requires_grad, layer.padding_idx) == (True, 0)
    assert layer.weight.tolist() == table.tolist()
    with refused("from_pretrained", "(2,)"):
        kind.from_pretrained(table[0])
