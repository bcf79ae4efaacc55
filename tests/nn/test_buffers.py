"""Buffers of modules are tensors, whose methods, writes and copies are PyTorch's."""

import copy
import pickle
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import in_both

import nnmpi
from nnmpi import nn
from nnmpi.nn.place import Place


def filled(n: Any) -> Any:
    """A module with a buffer of each kind."""
    m = n.nn.Module()
    m.register_buffer("b", n.tensor([[1.0, 2.0, 4.0], [3.0, 5.0, 9.0]]))
    m.register_buffer("count", n.tensor(0))
    m.register_buffer("later", None)
    m.register_buffer("unsaved", n.zeros(2), False)
    m.inner = n.nn.BatchNorm1d(2)
    return m


def methods(n: Any) -> list[Any]:
    b = filled(n).b
    values, indices = b.max(1)
    return [b.std(), b.transpose(0, 1), values, indices, b.size(0), b.dim(), b.mean(0)]


def writes(n: Any) -> list[Any]:
    m = filled(n)
    b = m.b
    m.b.mul_(0.5).add_(n.ones(3))
    m.count += 1
    m.count.add_(2)
    m.b[0] = 7.0
    m.b[1, 2] = n.tensor(3.0)
    m.b.copy_(m.b * 2)
    m.b.data[0, 0] = 8.0
    row = m.b[1]
    row.zero_()
    m.unsaved.fill_(3.0)
    assert b is m.b
    return [m.b, m.count, m.unsaved, m.b.requires_grad]


def what_the_layers_write(n: Any) -> list[Any]:
    m = filled(n)
    mean = m.inner.running_mean
    m.inner(n.tensor([[1.0, 2.0], [3.0, 5.0]]))
    mean.mul_(2.0)
    m.inner.running_var = n.tensor([4.0, 9.0])
    m.inner.eval()
    return [mean, m.inner.num_batches_tracked, m.inner(n.tensor([[1.0, 2.0]]))]


def names(n: Any) -> list[Any]:
    m = filled(n)
    m.other = m.inner
    found = [[*m.state_dict()], [name for name, _ in m.named_buffers("p")], len([*m.buffers()])]
    found += [[name for name, _ in m.named_buffers(recurse=False)], len([*m.buffers(False)])]
    m.later, m.b = n.ones(1), None
    m.register_buffer("unsaved", n.zeros(2))
    found.append([*m.state_dict()])
    m.b, m.later = n.ones(1), n.nn.Parameter(n.ones(1))
    del m.unsaved
    return [*found, [*m.state_dict()], [name for name, _ in m.named_buffers()]]


def copies(n: Any) -> list[Any]:
    m = filled(n)
    m.count += 3
    deep, pickled = copy.deepcopy(m), pickle.loads(pickle.dumps(m))
    deep.count += 1
    m.b.zero_()
    return [m.count, deep.count, pickled.count, deep.b, pickled.b, [*pickled.state_dict()]]


def types(n: Any) -> list[Any]:
    m = filled(n)
    b = m.b
    is_same = m.to("cpu").float().b is b
    m.double()
    kinds = [str(t.dtype).rpartition(".")[2] for t in (b, m.b, m.count, m.unsaved)]
    m.b += 1
    return [is_same, kinds, b]


def assigned_tensors(n: Any) -> list[Any]:
    m, t = filled(n), n.ones(2)
    m.unsaved = t
    t.add_(1)
    m.register_buffer("b", t)
    assert m.unsaved is t
    assert m.b is t
    return [m.unsaved, m.b]


def history(n: Any) -> list[Any]:
    m, x, w = filled(n), n.ones(3, requires_grad=True), n.ones(3, requires_grad=True)
    m.b = m.b * x
    found = [m.b.requires_grad, m.b.is_leaf]
    m.b.add_(w)
    (m.b * m.b).sum().backward()
    m.b = m.b.detach()
    return [*found, x.grad, w.grad, m.b]


def a_state(n: Any) -> list[Any]:
    m = filled(n)
    b = m.b
    m.load_state_dict({name: t * 0 + 1 for name, t in m.state_dict().items()})
    assert b is m.b
    return [b, m.count, m.inner.running_mean, m.unsaved]


def by_numpy(n: Any) -> list[Any]:
    m = filled(n)
    array = np.asarray(m.b)
    array[0, 0] = 5.0
    return [m.b, float(np.mean(m.b.numpy())), bool(np.array_equal(m.b, array))]


def texts(n: Any) -> list[Any]:
    m = filled(n)
    return [f"{m.count} {m.b.mean():.2f}", str(m.count)]


CASES: dict[Callable[[Any], list[Any]], list[Any]] = {
    methods: [
        2.8284271, [[1, 3], [2, 5], [4, 9]], [4, 9], [2, 2], 2, 2, [2, 3.5, 6.5]
    ],
    writes: [[[8, 14, 14], [0, 0, 0]], 3, [3, 3], False],
    what_the_layers_write: [[0.4, 0.7], 1, [[0.2999996, 0.4333331]]],
    names: [
        ["b", "count", *(INNER := [f"inner.{name}" for name in (
            "weight", "bias", "running_mean", "running_var", "num_batches_tracked"
        )]), *(name.replace("inner", "other") for name in INNER)],
        ["p.b", "p.count", "p.unsaved", *(f"p.{name}" for name in INNER[2:])],
        6,
        ["b", "count", "unsaved"],
        3,
        ["count", "later", "unsaved", *INNER, *(s.replace("inner", "other") for s in INNER)],
        ["later", "b", "count", *INNER, *(s.replace("inner", "other") for s in INNER)],
        ["b", "count", *INNER[2:]],
    ],
    copies: [3, 4, 3, *[[[1, 2, 4], [3, 5, 9]]] * 2, ["b", "count", *INNER]],
    types: [
        True, ["float32", "float64", "int64", "float64"], [[1, 2, 4], [3, 5, 9]]
    ],
    assigned_tensors: [[2, 2]] * 2,
    history: [True, False, [28, 72, 220], [12, 18, 30], [[2, 3, 5], [4, 6, 10]]],
    a_state: [[[1, 1, 1], [1, 1, 1]], 1, [1, 1], [0, 0]],
    by_numpy: [[[5, 2, 4], [3, 5, 9]], 28 / 6, True],
    texts: ["0 4.00", "tensor(0)"],
}  # fmt: skip
"""What each case returns."""


@in_both
@pytest.mark.parametrize("case", CASES)
def test_what_buffers_do(case: Callable[[Any], list[Any]], library: str) -> None:
    for value, wanted in zip(case(import_module(library)), CASES[case], strict=True):
        found = value.tolist() if hasattr(value, "tolist") else value
        if np.asarray(wanted).dtype.kind == "U":
            assert found == wanted
        else:
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_write_after_use_is_noticed_in_the_backward_pass() -> None:
    for write in (
        lambda m: m.b.add_(1),
        lambda m: m.load_state_dict(copy.deepcopy(m.state_dict())),
    ):
        m, x = filled(nnmpi), nnmpi.ones(3, requires_grad=True)
        y = (x * m.b).sum()
        write(m)
        with pytest.raises(RuntimeError, match="was written in"):
            y.backward()


def test_arrays_become_tensors_in_their_memory() -> None:
    m, array = nn.Module(), np.ones(3)
    m.register_buffer("b", array)
    m.b += 1
    assert array.tolist() == [2, 2, 2]
    m.b = np.zeros(2)
    assert type(m.b) is nnmpi.Tensor
    assert [*m.state_dict()] == ["b"]


def test_a_buffer_of_a_parameter_is_its_values() -> None:
    m, p = nn.Module(), nn.Parameter(nnmpi.ones(2))
    for given in (p, p.data):
        m.register_buffer("b", given)
        assert [name for name, _ in m.named_parameters()] == []
        assert not m.b.requires_grad
        m.b.add_(1)
    assert p.tolist() == [3, 3]


def test_a_part_that_is_none_or_unsaved_has_no_shape_to_check() -> None:
    m, place = nn.Module(), Place("", (6,), ((1, 3),))
    m.register_buffer("later", None, place=place)
    m.later = nnmpi.ones(2)
    assert [(p.path, p.part) for p, _ in m.tensors()] == [("later", ((1, 3),))]
    with refused("Module.b: the buffer has shape (3,)"):
        m.register_buffer("b", nnmpi.ones(3), place=place)
