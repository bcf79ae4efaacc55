"""Names of PyTorch: each is there, or its error says what to do instead."""

from importlib import import_module
from typing import Any

import pytest
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi

ROOMS = {
    "torch": "nnmpi",
    "torch.nn": "nnmpi.nn",
    "torch.nn.functional": "nnmpi.nn.functional",
    "torch.optim": "nnmpi.optim",
    "torch.utils.data": "nnmpi.utils.data",
}


def silent(theirs: Any, ours: Any) -> list[str]:
    """The names of which ours has nothing, and says nothing."""
    names = []
    for name in dir(theirs):
        try:
            if not name.startswith("_"):
                getattr(ours, name)
        except AttributeError as error:
            if ": " not in str(error):
                names.append(name)
    return names


@needs_torch
@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.filterwarnings("ignore")
def test_each_name_is_there_or_has_a_hint(room: str) -> None:
    pytorch()
    assert silent(import_module(room), import_module(ROOMS[room])) == []


@needs_torch
@pytest.mark.filterwarnings("ignore")
def test_each_method_is_there_or_has_a_hint() -> None:
    torch = pytorch()
    assert silent(torch.Tensor, nnmpi.tensor([[1.0]])) == []
