"""Functions and modules that run again in their backward pass: the same bits, with less memory."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.saved_memory import nbytes, saved_memory

import nnmpi
from nnmpi import Config, nn
from nnmpi.arrays import dtypes
from nnmpi.arrays.meta import owner
from nnmpi.nn.recompute import Recomputed, as_recomputed, recomputed_paths
from nnmpi.run.setup.cutting import uncut_of
from nnmpi.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Two layers with dropout and running statistics; `twice` is used in every block."""

    def __init__(self, twice: nn.Parameter) -> None:
        self.a, self.b, self.norm = nn.Linear(6, 9), nn.Linear(9, 6), nn.BatchNorm1d(6)
        self.drop, self.twice = nn.Dropout(0.3), twice

    def forward(self, x: Any, more: Any = None) -> Any:
        y = self.drop(self.b(nnmpi.relu(self.a(x * self.twice))))
        return self.norm(x + y * self.twice + (0 if more is None else more))


class Model(nn.Module):
    """Blocks that are called by `call`; x goes to all of them, so its gradient is a sum."""

    def __init__(self, call: Callable[..., Any], dtype: Any) -> None:
        self.twice = nn.Parameter(np.linspace(0.5, 1.5, 6, dtype=np.float32))
        self.blocks = nn.ModuleList(Block(self.twice) for _ in range(3))
        self.call = call
        self.to(dtype=dtype)

    def forward(self, x: Any) -> Any:
        y = x
        for block in self.blocks:
            y = self.call(block, y, more=x)
        return y * self.twice


def plain(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    return function(*args, **named)


def trained(call: Callable[..., Any], dtype: str = "float32", halves: bool = False) -> list[bytes]:
    """All that two passes leave: results, gradients, running statistics, and leaves in the order in
    which they are final."""
    kind = dtypes.named(dtype)
    model, bits = Model(call, kind), list[bytes]()
    names = {id(p): name for name, p in model.named_parameters()}
    rng = np.random.default_rng(1)
    for _ in range(2):
        leaf = nnmpi.tensor(rng.standard_normal((5, 6)).astype(kind), requires_grad=True)
        x, final = leaf * 2, list[str]()
        y = model(x)

        def on_leaf(leaf: Any, final: list[str] = final) -> None:
            final.append(names.get(id(leaf), "x"))

        seed = np.ones_like(y.numpy())
        if halves:
            y.backward(seed, until=leaf).finish(on_leaf)
        else:
            y.backward(seed, on_leaf=on_leaf)
        bits += [y.numpy().tobytes(), leaf.grad_array.tobytes(), " ".join(final).encode()]
    bits += [p.grad_array.tobytes() for p in model.parameters()]
    return bits + [t.array.tobytes() for t in model.buffers()]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("halves", [False, True])
def test_what_runs_again_has_the_same_bits(dtype: str, halves: bool) -> None:
    assert trained(checkpoint, dtype, halves) == trained(plain, dtype, halves)


def nested(block: Any, *args: Any, **named: Any) -> Any:
    return checkpoint(lambda: checkpoint(block, *args, **named))


def test_functions_may_be_closures_and_within_others() -> None:
    assert trained(nested) == trained(plain)
    assert trained(nested, halves=True) == trained(plain, halves=True)


def test_only_inputs_are_kept() -> None:
    x = nnmpi.tensor(np.ones((5, 6), np.float32), requires_grad=True)
    kept = [
        nbytes(saved_memory([Model(call, "float32")(x)]).values()) for call in (checkpoint, plain)
    ]
    inputs = 3 * 5 * 6 * 4 + 5 * 6 * 4  # of three blocks, and the product behind them
    assert kept[0] <= inputs
    assert kept[1] > 3 * kept[0]


def test_a_graph_may_be_kept_or_is_used_up() -> None:
    model = Model(checkpoint, "float64")
    y = model(nnmpi.tensor(np.eye(6), requires_grad=True)).sum()
    y.backward(retain_graph=True)
    first = model.twice.grad_array.copy()
    y.backward()
    np.testing.assert_allclose(model.twice.grad_array, 2 * first, rtol=1e-12)
    with pytest.raises(RuntimeError, match="used up"):
        y.backward()


def test_copies_and_pickles_keep_their_activations() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    as_recomputed(model)
    assert isinstance(model, Recomputed)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert type(other) is nn.Sequential
        np.testing.assert_array_equal(other[0].weight.array, model[0].weight.array)


def test_without_gradients_a_function_runs_once() -> None:
    calls = []

    class Counting(nn.Module):
        def forward(self, x: Any) -> Any:
            def function(x: Any) -> Any:
                calls.append(x)
                return x * 2

            return checkpoint(function, x)

    x = nnmpi.tensor(np.ones(3), requires_grad=True)
    with nnmpi.no_grad():
        Counting()(x)
    assert len(calls) == 1
    Counting()(x).sum().backward()
    assert len(calls) == 3


class Calls(nn.Module):
    """Its forward calls a function by checkpoint."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def forward(self, x: Any) -> Any:
        return checkpoint(self.function, x)


def test_what_cannot_run_again_is_refused() -> None:
    x = nnmpi.tensor(np.ones(3), requires_grad=True)
    with refused("in the `forward` of a module"):
        checkpoint(lambda x: x * 2, x)
    with refused("returned a tuple", "one tensor"):
        Calls(lambda x: (x * 2, x * 3))(x)
    rng = np.random.default_rng(0)
    y = Calls(lambda x: x * float(rng.random()))(x).sum()
    with refused("returns another output", "nnmpi.random"):
        y.backward()
    y = Calls(lambda x: x * 2)(x * 1)
    x.array[...] = 1
    y = Calls(lambda z: z * z)(x)
    x.mark_written()
    with pytest.raises(RuntimeError, match="written in place"):
        y.sum().backward()


# ---- which modules


@pytest.mark.parametrize("how", ["block", "selective"])
def test_a_model_without_such_modules_is_refused(how: str) -> None:
    config = Config(model="mlp:4-8-2", data="synthetic:4:2:8", recompute=how, batch_size=2)
    with refused(f"recompute {how}", "--recompute stage"):
        recomputed_paths(uncut_of(config)[1].graph, how)


@pytest.mark.parametrize(("given", "means"), [(True, "stage"), (False, "none"), ("block", "block")])
def test_a_bool_of_an_old_file_is_read(given: Any, means: str) -> None:
    assert Config(recompute=given).recompute == means


def test_bits_of_memory_are_of_owners() -> None:
    """The input of a block may be a view: what is counted is the memory that it keeps alive."""
    x = nnmpi.tensor(np.ones((8, 6)), requires_grad=True)
    y = Calls(lambda x: x * 2)((x * 1)[2:4])
    assert {owner(a).shape for a in saved_memory([y]).values()} == {(8, 6)}
