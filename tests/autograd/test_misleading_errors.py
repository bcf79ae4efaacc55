"""Mistakes of PyTorch and NumPy users: the error says what is wrong and what to write."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnmpi
import nnmpi.nn.functional as F
from nnmpi import nn
from nnmpi.arrays import backend

X = np.arange(6.0).reshape(2, 3)


def t() -> nnmpi.Tensor:
    return nnmpi.tensor(X, requires_grad=True)


def images() -> nnmpi.Tensor:
    return nnmpi.tensor(np.ones((1, 1, 4, 4)))


def saved(state: Any) -> None:
    nnmpi.save(state, Path("never written"))


def to_no_gpu() -> nnmpi.Tensor:
    with pytest.MonkeyPatch.context() as patch:  # the tests may have an emulated one
        patch.setattr(backend, "_why_no_cuda", lambda: "none")
        return t().to("cuda")


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], tuple[str, ...]]] = {
    "float64 input": (lambda: nn.Linear(3, 2)(t()), ValueError, ("x.astype('float32')",)),
    "a device of another name": (
        lambda: t().to("gpu"),
        TypeError,
        ("'gpu' is neither a dtype", "cpu, cuda, auto"),
    ),
    "a range of integers with broken numbers": (
        lambda: nnmpi.arange(-1, 2, 0.5, dtype="int64"),
        ValueError,
        ("arange: -0.5 is no int64: give whole numbers",),
    ),
    "a share with a gradient": (
        lambda: nnmpi.ones(3).quantile(nnmpi.tensor(0.5, requires_grad=True)),
        ValueError,
        ("q would get no gradient", "q.detach()"),
    ),
    "a linear layer of another width": (
        lambda: nn.Linear(4, 2)(nnmpi.ones(5, 3)),
        ValueError,
        ("input of shape (5, 3)", "the last axis must be 4"),
    ),
    "another rounding of quotients": (
        lambda: t().div(2, rounding_mode="up"),
        ValueError,
        ("rounding_mode='up' must be 'floor', 'trunc' or None",),
    ),
    "item of two": (lambda: nnmpi.ones(2, 1).item(), ValueError, ("shape (2, 1) has 2 elements",)),
    "float64 images": (lambda: nn.Conv2d(1, 1, 2)(images()), ValueError, ("float32'",)),
    "save a module": (
        lambda: saved(nn.Linear(3, 2)),
        ValueError,
        ("Linear is not a state dictionary", "nnmpi.save(model.state_dict(), path)"),
    ),
    "save, arguments swapped": (
        lambda: nnmpi.save("never written", nn.Linear(3, 2).state_dict()),
        ValueError,
        ("a str is not a state dictionary", "nnmpi.save(model.state_dict(), path)"),
    ),
    **{
        f"save to {path}": (
            lambda path=path: nnmpi.save({"a": np.ones(2)}, path),
            TypeError,
            (f"the path is of type {type(path).__name__}", "nnmpi.save(model.state_dict(), path)"),
        )
        for path in (5, None, ["m"], b"m")
    },
    "save a module in a dict": (
        lambda: saved({"model": nn.Linear(3, 2)}),
        ValueError,
        ("state['model'] is a Linear", "nnmpi.save(model.state_dict(), path)"),
    ),
    "concatenate nothing": (
        lambda: nnmpi.concatenate([]),
        ValueError,
        ("concatenate: needs at least one tensor",),
    ),
    "Tensor of a number": (
        lambda: nnmpi.Tensor(1.0, requires_grad=True),
        TypeError,
        ("not 1.0", "nnmpi.tensor(1.0)"),
    ),
    "gradients of gradients": (
        lambda: t().sum().backward(create_graph=True),
        TypeError,
        ("gradients have no gradients", "leave out create_graph=True"),
    ),
    "hooks": (lambda: t().register_hook(print), AttributeError, ("t.grad after backward()",)),
    "no_grad of something": (lambda: nnmpi.no_grad(True), TypeError, ("with nnmpi.no_grad():",)),
    "NumPy's sum": (lambda: np.sum(t()), TypeError, ("lose the gradient", "use t.sum()")),
    "NumPy's norm": (lambda: np.linalg.norm(t()), TypeError, ("nnmpi.sqrt((t * t).sum())",)),
    "to a GPU that is not there": (to_no_gpu, ValueError, ("no CUDA device: none; use",)),
    "to a GPU by its number": (lambda: t().to("cuda:2"), ValueError, ("write 'cuda'",)),
    "transpose, an order of two of three axes": (
        lambda: t()[None].transpose((1, 2)),
        ValueError,
        ("not the 3 axes", "t.transpose(1, 2) exchanges two"),
    ),
    "expand to fewer axes": (lambda: t().expand(3), ValueError, ("(3,)", "(2, 3)")),
    "a triangle of a vector": (lambda: nnmpi.tril(t()[0]), ValueError, ("(3,)", "matrices")),
    "randint of nothing": (lambda: nnmpi.randint(3, 3, (1,)), ValueError, ("from 3 to below 3",)),
    "more draws than weights": (
        lambda: nnmpi.multinomial(nnmpi.tensor([0.0, 1.0]), 2),
        ValueError,
        ("2 different indices of 1", "replacement=True"),
    ),
    "weights below 0": (
        lambda: nnmpi.multinomial(nnmpi.tensor([-1.0, 1.0]), 1),
        ValueError,
        ("none below 0",),
    ),
    "weights of three axes": (
        lambda: nnmpi.multinomial(nnmpi.ones(1, 1, 2), 1),
        ValueError,
        ("a row or a matrix",),
    ),
    "seeds of GPUs": (
        lambda: getattr(nnmpi.cuda, "seed_all"),  # noqa: B009
        AttributeError,
        ("'seed_all'", "the GPU with its number"),
    ),
    "permute without axes": (lambda: t().permute(), ValueError, ("axes () are not the 2 axes",)),
    "the length of an axis that is not there": (
        lambda: t().size(2),
        IndexError,
        ("axis 2 is out of range for shape (2, 3)",),
    ),
    "from_numpy of a list": (lambda: nnmpi.from_numpy([1.0]), TypeError, ("nnmpi.tensor(x)",)),
    "a device that is none": (
        lambda: nnmpi.zeros(2, device="xla:0"),
        ValueError,
        ("'xla:0' is not one of cpu, cuda, auto",),
    ),
    "another GPU": (lambda: nnmpi.device("cuda:1"), ValueError, ("write 'cuda'", "for rank r")),
    "another GPU by number": (
        lambda: nnmpi.device("cuda", 2),
        ValueError,
        ("device 'cuda:2': write 'cuda'",),
    ),
    "a device of a layer": (
        lambda: nnmpi.nn.Linear(3, 4, device="cpu"),
        TypeError,
        ("Linear takes no argument 'device'", "Linear(...).to(device)"),
    ),
    "an argument that PyTorch has no more": (
        lambda: nnmpi.nn.MSELoss(size_average=True),
        TypeError,
        ("takes no argument 'size_average'", "reduction='mean'"),
    ),
    "an argument that no layer has": (
        lambda: nnmpi.nn.Linear(3, 4, foo=1),
        TypeError,
        ("unexpected keyword argument 'foo'",),
    ),
    **{
        f"nnmpi.{name}": (lambda name=name: getattr(nnmpi, name), AttributeError, (name, instead))
        for name, instead in {
            "DataLoader": "nnmpi.utils.data",
        }.items()
    },
    "a function that nobody has": (lambda: nnmpi.foo, AttributeError, ("nnmpi has no 'foo'",)),
    "a function in place": (
        lambda: F.relu(nnmpi.ones(2, requires_grad=True), inplace=True),
        RuntimeError,
        ("make a new tensor",),
    ),
    "softmax over PyTorch's guess": (lambda: F.softmax(t()), ValueError, ("softmax(x, dim=1)",)),
    "a function that there is not": (lambda: F.batch_norm, AttributeError, ("nn.BatchNorm2d",)),
    "labels without a class": (
        lambda: F.one_hot(np.array([0, 3]), 3),
        ValueError,
        ("labels from 0 to 3 for 3 classes",),
    ),
    "a mask with a gradient": (
        lambda: nnmpi.scaled_dot_product_attention(*[t()[None]] * 3, attn_mask=t()[:, :2]),
        ValueError,
        ("attn_mask requires a gradient", "softmax(-1) @ v"),
    ),
    "zero_": (lambda: t().zero_(), RuntimeError, ("in place", "no_grad")),
    "cauchy_": (lambda: t().cauchy_(), AttributeError, ("'cauchy_'", "t[...] = x", "no_grad")),
    "a wrong name": (lambda: t().shpae, AttributeError, ("no attribute 'shpae'",)),
    "the largest of nothing": (
        lambda: nnmpi.tensor(np.ones((3, 0))).max(axis=1),
        ValueError,
        ("max: shape (3, 0)", "axis 1"),
    ),
    "the index of the largest of nothing": (
        lambda: nnmpi.tensor(np.ones((3, 0))).argmax(axis=1),
        ValueError,
        ("argmax: shape (3, 0)", "axis 1"),
    ),
    "an axis by two names": (lambda: t().sum(axis=0, dim=1), TypeError, ("axis=0 and dim=1",)),
    "a flag by two names": (
        lambda: t().mean(0, keepdims=True, keepdim=False),
        TypeError,
        ("keepdims=True and keepdim=False", "give one"),
    ),
    "a divisor by two names": (
        lambda: t().std(ddof=1, correction=0),
        TypeError,
        ("ddof=1 and correction=0", "give one"),
    ),
    "logic of floats": (lambda: t() & True, TypeError, ("not float64", "(t > 0) & (t < 1)")),
    "not of floats": (lambda: ~t(), TypeError, ("~ takes booleans", "not float64")),
    "flatten backwards": (lambda: t().flatten(1, 0), ValueError, ("start_dim=1", "end_dim=0")),
    "lengths that do not add up": (
        lambda: t().split([2, 2], dim=1),
        ValueError,
        ("lengths [2, 2]", "add up to 3, the size of axis 1"),
    ),
    "parts of length 0": (lambda: t().split(0), ValueError, ("length of 0", "at least 1")),
    "lengths in an array": (
        lambda: t().split(np.array([2, 2]), dim=1),
        ValueError,
        ("lengths [2, 2]", "add up to 3"),
    ),
    "an option of PyTorch's": (lambda: t().std(out=None), TypeError, ("Tensor.std()",)),
    "a target without the axis of the prediction": (
        lambda: nn.MSELoss()(t()[:, :1], np.ones(2)),
        ValueError,
        ("(2, 1)", "(2,)", "y[:, None]"),
    ),
    **{
        f"{name} over axis {axis} of {shape}": (
            lambda shape=shape, axis=axis, name=name: getattr(nnmpi.zeros(shape), name)(axis),
            IndexError,
            (f"axis {axis} is out of bounds",),
        )
        for name in ("max", "min", "argmax")
        for shape, axis in ((0, 1), ((3, 0), 5), ((3, 0), -3))
    },
    "unsqueeze without a place": (lambda: t().unsqueeze(), TypeError, ("t.unsqueeze(0)",)),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_the_message_says_what_to_write(mistake: Any) -> None:
    call, kind, words = mistake
    with pytest.raises(kind) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_no_grad_without_parentheses() -> None:
    @nnmpi.no_grad
    def evaluate(x: Any, factor: float = 1) -> Any:
        """Twice."""
        return x * factor

    x = t()
    assert not evaluate(x, factor=2).requires_grad
    assert evaluate(x, 2).numpy().tolist() == (2 * X).tolist()
    assert (evaluate.__name__, evaluate.__doc__) == ("evaluate", "Twice.")
    assert (x * 2).requires_grad
    with nnmpi.no_grad():
        assert not (x * 2).requires_grad


@pytest.mark.parametrize("function", [nnmpi.softmax, nnmpi.log_softmax])
def test_softmax_over_an_empty_axis_is_empty(function: Any) -> None:
    x = nnmpi.tensor(np.ones((3, 0)), requires_grad=True)
    y = function(x, axis=1)
    y.sum().backward()
    assert y.shape == x.grad.shape == (3, 0)
    with pytest.raises(ValueError, match="axis 2 is out of range for 2 axes"):
        function(x, axis=2)
