"""Every op against finite differences, PyTorch and a device."""

import inspect
import math
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device, waits
from helpers.ops.opcases_all import CASES, each, evaluated, is_leaf, single, weights
from helpers.ops.oracle import needs_torch, pytorch

from nnmpi.addons import ADD_ONS
from nnmpi.arrays import backend
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.activations import erfc
from nnmpi.autograd import Tensor, ops
from nnmpi.autograd.check import directional_error

SMOOTH = [name for name, case in CASES.items() if case.smooth and case.has_gradient]


def answer(
    name: str, change: Callable[[np.ndarray], Any] = np.copy, leaf: type[Tensor] = Tensor
) -> list[Any]:
    """The op's value, and its gradient by each argument that has one."""
    y, leaves = evaluated(name, change, leaf)
    assert y.requires_grad == CASES[name].has_gradient
    if y.requires_grad:
        y.backward(weights(y.shape))
    return [y.array, *(a.grad_array for a in leaves)]


def agree(ours: list[Any], theirs: list[Any], tolerance: float = 1e-12) -> bool:
    """The same shapes and types, and equal but for a share of each array's largest number."""
    near = []
    for a, b in zip(map(backend.to_host, ours), theirs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype.kind != "f":
            near.append(bool((a == b).all()))
            continue
        off = np.abs(a - b).max(initial=0.0)
        near.append(off <= tolerance * np.abs(b).max(initial=1e-3))
    return all(near)


def test_each_op_is_in_the_table():
    rooms = [ops, *(import_module(m) for a in ADD_ONS.values() for m in a.of_step)]
    modules = [room for room in rooms if room.__name__.endswith("ops")] + [
        import_module(m.name)
        for room in rooms
        for m in pkgutil.walk_packages(getattr(room, "__path__", []), f"{room.__name__}.")
        if ".ops" in m.name or m.name.endswith("_ops")
    ]
    found = {
        f"{module.__name__}.{name}"
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
        and not name.startswith("_")
        and inspect.signature(function, eval_str=True).return_annotation is Result
    }
    assert len(found) > 30
    assert found == {f"{case.op.__module__}.{case.op.__name__}" for case in CASES.values()}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_are_finite_differences(name):
    case = CASES[name]
    arrays = case.arrays(name)
    for k, array in enumerate(arrays):
        if not is_leaf(array):
            continue

        def of_one(t: Tensor, k: int = k) -> Tensor:
            return case.run(case.op, *arrays[:k], t, *arrays[k + 1 :], **case.options)

        assert directional_error(of_one, array) < 2e-6, f"argument {k}"


@needs_torch
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_pytorchs(name):
    torch, case = pytorch(), CASES[name]
    args = each(torch.as_tensor, case.arrays(name))
    leaves = [a.requires_grad_() for a in args if hasattr(a, "dtype") and a.is_floating_point()]
    y = case.oracle(torch, *args, **case.options)
    if not case.has_gradient:
        assert agree(answer(name), [y.numpy()])
        return
    grads = torch.autograd.grad(y, leaves, torch.as_tensor(weights(tuple(y.shape)), dtype=y.dtype))
    assert agree(answer(name), [a.detach().numpy() for a in (y, *grads)])


@pytest.mark.parametrize(("dtype", "last"), [("float64", 26), ("float32", 8)])
def test_erfc_is_exact_to_rounding(dtype, last):
    """As far as its exponent -x^2 is: the relative error grows with x^2."""
    x = np.linspace(-6, last, 4001).astype(dtype)
    exact = np.array([math.erfc(v) for v in x])
    assert erfc(x).dtype == dtype
    assert (np.abs(erfc(x) / exact - 1) / (1 + x * x)).max() < 16 * np.finfo(dtype).eps


@needs_device
@pytest.mark.one_in(60)
@pytest.mark.parametrize("name", CASES)
def test_a_device_gives_the_same_without_waits(name):
    with waits(CASES[name].waits):
        device = answer(name, DEVICE.asarray)
    assert {type(a) for a in device} == {DEVICE.xp.ndarray}
    assert agree(device, answer(name))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CASES)
def test_float32_stays_float32(name):
    kinds = []

    class Leaf(Tensor):
        def receive(self, vjp: Any, g: Any) -> None:
            kinds.append(vjp(g, None).dtype.name)

    with np.errstate(over="ignore"):
        value, *grads = answer(name, single, Leaf)
    assert kinds == ["float32"] * len(grads)
    if CASES[name].has_gradient:
        assert value.dtype == CASES[name].options.get("dtype", "float32")
