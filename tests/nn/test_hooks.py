"""Forward hooks: PyTorch's order and results; a module that has some runs alone."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, same_as_pytorch

import nnmpi
from nnmpi import nn

X = np.random.default_rng(0).standard_normal((2, 2, 6, 6)).astype("float32")


def fused() -> nn.Sequential:
    """Layers of which each run of three, two and two is one op."""
    return nn.Sequential(
        *(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(3, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 4), nn.ReLU()),
    )


def register(model: Any, told: list[str]) -> list[Any]:
    """Hooks of both kinds that change what goes in and out, and tell their names."""

    def after(name: str, change: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda m, args, y: (told.append(f"{name} {len(args)}"), change(y))[1]

    def before(name: str, change: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda m, args: (told.append(f"{name} {len(args)}"), change(args[0]))[1]

    def with_names(m: Any, args: Any, options: Any, y: Any) -> None:
        told.append(f"named {len(args)} {sorted(options)}")

    return [
        model.register_forward_hook(after("first", lambda y: y * 2)),
        model.register_forward_hook(after("second", lambda y: None)),
        model.register_forward_hook(after("zeroth", lambda y: y + 1), prepend=True),
        model.register_forward_hook(with_names, with_kwargs=True),
        model.register_forward_pre_hook(before("pre", lambda x: (x - 1,))),
        model.register_forward_pre_hook(before("bare", lambda x: x * 3)),
        model.register_forward_pre_hook(lambda m, args, options: (args, options), with_kwargs=True),
    ]


@needs_torch
def test_hooks_run_in_the_order_of_pytorch_with_its_results() -> None:
    told: list[list[str]] = []

    def program(n: Any, x: Any) -> Any:
        layer, names = n.nn.Tanh(), list[str]()
        handles, found = register(layer, names), [layer(x)]
        called = ["pre 1", "bare 1", "zeroth 1", "first 1", "second 1", "named 1 []"]
        assert names == called
        for handle in handles:
            handle.remove()
            handle.remove()
            found.append(layer(x.detach()))
        told.append(names)
        assert n is not nnmpi or layer._hooks == ()
        return found

    same_as_pytorch(program, X[0, 0], rtol=1e-5, atol=1e-6)
    assert told[0] == told[1]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("k", range(8))
def test_a_hook_is_not_lost_where_layers_run_as_one_op(k: int, late: bool) -> None:
    """Also if the Sequential has run before, and while it is part of another module."""
    model, seen = fused(), []
    plain = [nnmpi.tensor(X)]
    for layer in model:
        plain.append(layer(plain[-1]))
    if late:
        model(plain[0])
    handle = model[k].register_forward_hook(lambda m, args, y: seen.append((args[0], y)))
    y = nn.Sequential(model)(plain[0])
    np.testing.assert_allclose(y.numpy(), plain[-1].numpy(), rtol=1e-5, atol=1e-6)
    ((x, y),) = seen
    np.testing.assert_allclose(x.numpy(), plain[k].numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y.numpy(), plain[k + 1].numpy(), rtol=1e-5, atol=1e-6)
    handle.remove()
    model(plain[0])
    assert len(seen) == 1


def test_a_copy_has_hooks_of_its_own() -> None:
    model = nn.Tanh()
    handle = model.register_forward_hook(lambda m, args, y: y * 2)
    twin = copy.deepcopy(model)
    handle.remove()
    np.testing.assert_array_equal(twin(X).numpy(), 2 * model(X).numpy())
