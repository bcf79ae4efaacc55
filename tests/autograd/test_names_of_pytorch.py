"""Names of PyTorch: each is there, or its error says what to do instead."""

import pickle
import re
from importlib import import_module
from inspect import isfunction
from typing import Any

import numpy as np
import pytest
from helpers.mpijob import ROOT
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi.autograd import replacements

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


def test_a_hint_names_what_there_is() -> None:
    """Each name of nnmpi, nn and numpy, and each method of a tensor, that a hint advises."""
    t = nnmpi.tensor([[1.0]])
    text = " ".join(s for rows in replacements._rows().values() for _, s in rows)
    assert len(text) > 5000
    for path in re.findall(r"\bnnmpi((?:\.\w+)+)", text):
        value: Any = nnmpi
        for name in path[1:].split("."):
            value = getattr(value, name)
    for name in re.findall(r"\bnumpy\.(\w+)", text):
        getattr(np, name)
    for name in re.findall(r"\bnn\.(\w+)", text.replace("nnmpi.nn", "")):
        getattr(nnmpi.nn, name)
    for name in re.findall(r"\bt\.(\w+)", text):
        getattr(t, name)


def test_functions_are_pickled_by_their_names() -> None:
    for name in nnmpi.__all__:
        function = getattr(nnmpi, name)
        if isfunction(function):
            assert pickle.loads(pickle.dumps(function)) is function


def test_other_names_have_none() -> None:
    for ours in (nnmpi, nnmpi.tensor(1.0), nnmpi.nn):
        with pytest.raises(AttributeError, match=r"'misspelt'$"):
            _ = ours.misspelt
    assert not hasattr(nnmpi.tensor(1.0), "__array_interface__")


def test_the_page_for_users_of_pytorch_names_what_there_is() -> None:
    page = (ROOT / "docs" / "from-pytorch.md").read_text(encoding="utf-8")
    table = [row.split(" | ") for row in page.splitlines() if row.startswith("| `")]
    here = " ".join(row[1] + row[2] for row in table)
    scope = {"nnmpi": nnmpi, "F": nnmpi.nn.functional, "nn": nnmpi.nn, "t": nnmpi.zeros(1, 1)}
    named = re.findall(r"(?<![\w.])(nnmpi|nn|F|t)\.(\w+)", here)
    assert len(named) > 20
    for owner, name in named:
        getattr(scope[owner], name)
    t = nnmpi.tensor([[1.0, 3.0], [2.0, 0.0]])
    with pytest.raises(TypeError, match="values alone"):
        _values, _indices = t.max(1)
    assert t.transpose(0, 1).tolist() == [[1, 2], [3, 0]]
    assert t.transpose((0, 1)).tolist() == t.tolist()
    assert (t.dtype == nnmpi.float32, t.size, t.size()) == (True, 4, (2, 2))
    assert t.std() < t.std(correction=1)
    assert nnmpi.empty(2).tolist() == [0, 0]
