"""Mistakes of PyTorch and NumPy users: the error says what is wrong and what to write."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused

import nnmpi
import nnmpi.nn.functional as F
from nnmpi import nn
from nnmpi.arrays import backend
from nnmpi.autograd import apply
from nnmpi.autograd.ops import conv

X = np.arange(6.0).reshape(2, 3)
PLAIN, EMPTY, WHOLE = nnmpi.zeros(2, 3), nnmpi.ones(3, 0), nnmpi.tensor([1, 2, 3])
BYTES = nnmpi.zeros(2, dtype="uint8")


def t() -> nnmpi.Tensor:
    return nnmpi.tensor(X, requires_grad=True)


def saved(state: Any, path: Any = Path("never written")) -> None:
    nnmpi.save(state, path)


def to_no_gpu() -> nnmpi.Tensor:
    with pytest.MonkeyPatch.context() as patch:  # the tests may have an emulated one
        patch.setattr(backend, "_why_no_cuda", lambda: "none")
        return t().to("cuda")


def pooled(*shape: int) -> Any:
    return apply(conv.conv2d, nnmpi.ones(1, 5, *shape), nnmpi.ones(4, 5, 3, 3), None, pool=True)


def of(*shape: int) -> nnmpi.Tensor:
    return nnmpi.ones(*shape, requires_grad=True)


VALUES: dict[str, Callable[[], Any]] = {
    "add: shapes (2, 3) and (4,) do not broadcast": lambda: of(2, 3) + of(4),
    "multiply: shapes (5, 2) and (2, 3) do not broadcast": lambda: np.ones((5, 2)) * of(2, 3),
    "maximum: shapes (2,) and (3,) do not broadcast": lambda: nnmpi.maximum(of(2), of(3)),
    "matmul: shapes (2, 3) and (2, 3) do not fit": lambda: of(2, 3) @ of(2, 3),
    "matmul: shapes (3,) and (4,) do not fit": lambda: of(3) @ of(4),
    "matmul: shapes (3,) and () do not fit": lambda: of(3) @ of(),
    "matmul: shapes (2, 2, 3) and (4, 3, 2) do not fit": lambda: of(2, 2, 3) @ of(4, 3, 2),
    "linear: input of shape (2, 3) ... (5, 4)": lambda: F.linear(of(2, 3), of(5, 4)),
    "conv2d: input of shape (2, 3, 8, 8) ... (4, 5, 3, 3)": lambda: F.conv2d(
        of(2, 3, 8, 8), of(4, 5, 3, 3)
    ),
    "conv2d: input of shape (2, 3) ... (4, 5, 3, 3)": lambda: F.conv2d(of(2, 3), of(4, 5, 3, 3)),
    "concatenate: shapes (2, 3), (2, 4)": lambda: nnmpi.concatenate([of(2, 3), of(2, 4)]),
    "stack: shapes (3,), (4,)": lambda: nnmpi.stack([of(3), of(4)]),
    "reshape: 6 elements of shape (2, 3) do not fit (4, 2)": lambda: of(2, 3).reshape(4, 2),
    "where: shapes (2,) and (3,) do not": lambda: nnmpi.where(np.ones(2, bool), of(3), 0.0),
    "where: shapes (2,) and (3,) do not broadcast": lambda: nnmpi.where(
        np.ones(2, bool), 0.0, of(3)
    ),
    "(1,) (3,) (4,)": lambda: nnmpi.where(np.ones(1, bool), of(3), of(4)),
    "(3,) ... (2,2)": lambda: nnmpi.broadcast_to(of(3), (2, 2)),
    "arange: -0.5 is no int64: give whole numbers": lambda: nnmpi.arange(-1, 2, 0.5, dtype="int64"),
    "q would get no gradient ... q.detach()": lambda: nnmpi.ones(3).quantile(t()[0, 1]),
    "interpolation='cubic' ... linear, lower": lambda: (
        t().detach().quantile(0.5, interpolation="cubic")
    ),
    **{
        f"quantile: q={q} ... a number from 0 to 1": lambda q=q: t().detach().quantile(q)
        for q in (1.5, -0.1, [[0.5]])
    },
    "(0,) ... no elements": lambda: nnmpi.zeros(0).quantile(0.5),
    "from 0 to 1": lambda: nnmpi.bernoulli(nnmpi.tensor([1.5])),
    **{
        f"narrow: {length} slices from {start} along axis 0 ... (3,)": (
            lambda start=start, length=length: nnmpi.zeros(3).narrow(0, start, length)
        )
        for start, length in ((2, 2), (-4, 1), (0, 4))
    },
    "rounding_mode='up' must be 'floor', 'trunc' or None": lambda: t().div(2, rounding_mode="up"),
    "shape (2, 1) has 2 elements": lambda: nnmpi.ones(2, 1).item(),
    "3x9 ... kernel and a 2x2 pool": lambda: pooled(3, 9),
    "Linear is not a state dictionary ... nnmpi.save(model.state_dict(), path)": lambda: saved(
        nn.Linear(3, 2)
    ),
    "a str is not a state dictionary ... nnmpi.save(model.state_dict(), path)": lambda: saved(
        "never written", nn.Linear(3, 2).state_dict()
    ),
    "state['model'] is a Linear ... nnmpi.save(model.state_dict(), path)": lambda: saved(
        {"model": nn.Linear(3, 2)}
    ),
    "concatenate: needs at least one tensor": lambda: nnmpi.concatenate([]),
    "stack: needs at least one tensor": lambda: nnmpi.stack([]),
    "not the 3 axes ... t.transpose(1, 2) exchanges two": lambda: t()[None].transpose((1, 2)),
    "axes () are not the 2 axes": lambda: t().permute(),
    "no CUDA device: none; use": to_no_gpu,
    "'cuda:2' ... write 'cuda'": lambda: t().to("cuda:2"),
    "device 'cuda:2': write 'cuda'": lambda: nnmpi.device("cuda", 2),
    "'cuda:1' ... write 'cuda' ... for rank r": lambda: nnmpi.device("cuda:1"),
    "'xla:0' is not one of cpu, cuda, auto": lambda: nnmpi.zeros(2, device="xla:0"),
    "(3,) ... (2, 3)": lambda: t().expand(3),
    "(3,) ... matrices": lambda: nnmpi.tril(t()[0]),
    "from 3 to below 3": lambda: nnmpi.randint(3, 3, (1,)),
    "2 different indices of 1 ... replacement=True": lambda: nnmpi.multinomial(
        nnmpi.tensor([0.0, 1.0]), 2
    ),
    "none below 0": lambda: nnmpi.multinomial(nnmpi.tensor([-1.0, 1.0]), 1),
    "a row or a matrix": lambda: nnmpi.multinomial(nnmpi.ones(1, 1, 2), 1),
    "indexing='yx' must be 'ij' or 'xy'": lambda: nnmpi.meshgrid(nnmpi.ones(2), indexing="yx"),
    "meshgrid ... give vectors": lambda: nnmpi.meshgrid(nnmpi.ones(2, 2)),
    "softmax(x, dim=1)": lambda: F.softmax(t()),
    "labels from 0 to 3 for 3 classes": lambda: F.one_hot(np.array([0, 3]), 3),
    "attn_mask requires a gradient ... softmax(-1) @ v": lambda: nnmpi.scaled_dot_product_attention(
        *[t()[None]] * 3, attn_mask=t()[:, :2]
    ),
    "max: shape (3, 0) ... axis 1": lambda: EMPTY.max(axis=1),
    "argmax: shape (3, 0) ... axis 1": lambda: EMPTY.argmax(axis=1),
    "start_dim=1 ... end_dim=0": lambda: t().flatten(1, 0),
    "lengths [2, 2] ... add up to 3, the size of axis 1": lambda: t().split([2, 2], dim=1),
    "lengths [2, 3] ... add up to 3": lambda: t().split(np.array([2, 3]), dim=1),
    "length of 0 ... at least 1": lambda: t().split(0),
    "(2, 1) ... (2,) ... y[:, None]": lambda: nn.MSELoss()(t()[:, :1], np.ones(2)),
    "k=4 must be 0 to 3 ... (2, 3)": lambda: nnmpi.topk(PLAIN, 4),
    "(1, 2, 3) ... two numbers for each axis": lambda: nnmpi.pad(PLAIN, (1, 2, 3)),
    "2 axes": lambda: nnmpi.pad(PLAIN, (0, 0, 0, 0, 1, 1)),
    "length 3 ... (3, 0) ... 'reflect'": lambda: nnmpi.pad(PLAIN, (3, 0), "reflect"),
    "'mirror' ... reflect, replicate, circular": lambda: nnmpi.pad(PLAIN, (1, 1), "mirror"),
    "pad: negative widths cut off more": lambda: nnmpi.pad(PLAIN, (-2, -2)),
    "cut off more than an input of shape (2, 3)": lambda: nnmpi.pad(PLAIN, (5, -4)),
    "value=3.0 ... 'circular'": lambda: nnmpi.pad(PLAIN, (1, 1), "circular", 3.0),
    "(2, 3), (2, 3) ... the axes 'j' one length, not 3 and 2": lambda: nnmpi.einsum(
        "ij,jk->ik", PLAIN, PLAIN
    ),
    "'ij,jk->ik' ... a term for each tensor": lambda: nnmpi.einsum("ij,jk->ik", PLAIN),
    "a letter for each axis": lambda: nnmpi.einsum("ijk->i", PLAIN),
    "'1' in 'i1->i' ... write letters": lambda: nnmpi.einsum("i1->i", PLAIN),
    "'k' in 'ij->k' ... that is before it": lambda: nnmpi.einsum("ij->k", PLAIN),
    "'i' in 'ij->jii' ... each letter only once": lambda: nnmpi.einsum("ij->jii", PLAIN),
    "of shape (0, 3) do not fit (0, 2, -1)": lambda: nnmpi.zeros(0, 3).reshape(0, 2, -1),
    **{
        f"{number} does not fit into {dtype} ... t.to(nnmpi.int64)": (
            lambda dtype=dtype, number=number: nnmpi.zeros(2, dtype=dtype).__setitem__(0, number)
        )
        for dtype, number in (("uint8", -256), ("uint8", 300), ("int8", -129))
    },
}
TYPES: dict[str, Callable[[], Any]] = {
    "'gpu' is neither a dtype ... cpu, cuda, auto": lambda: t().to("gpu"),
    "not 1.0 ... nnmpi.tensor(1.0)": lambda: nnmpi.Tensor(1.0, requires_grad=True),
    "takes a list or sizes, not None": lambda: nnmpi.Tensor(None),
    "a list: write nnmpi.tensor": lambda: nnmpi.autograd.Variable([1.0]),
    "write the letters first": lambda: nnmpi.einsum(PLAIN, "ij->i"),
    "gradients have no gradients ... leave out create_graph=True": lambda: (
        t().sum().backward(create_graph=True)
    ),
    "with nnmpi.no_grad():": lambda: nnmpi.no_grad(True),
    "lose the gradient ... use t.sum()": lambda: np.sum(t()),
    "nnmpi.sqrt((t * t).sum())": lambda: np.linalg.norm(t()),
    "nnmpi.tensor(x)": lambda: nnmpi.from_numpy([1.0]),
    "Linear takes no argument 'device' ... Linear(...).to(device)": lambda: nn.Linear(
        3, 4, device="cpu"
    ),
    "takes no argument 'size_average' ... reduction='mean'": lambda: nn.MSELoss(size_average=True),
    "unexpected keyword argument 'foo'": lambda: nn.Linear(3, 4, foo=1),
    "axis=0 and dim=1": lambda: t().sum(axis=0, dim=1),
    "keepdims=True and keepdim=False ... give one": lambda: t().mean(
        0, keepdims=True, keepdim=False
    ),
    "ddof=1 and correction=0 ... give one": lambda: t().std(ddof=1, correction=0),
    "not float64 ... (t > 0) & (t < 1)": lambda: t() & True,
    "~ takes booleans ... not float64": lambda: ~t(),
    "Tensor.std()": lambda: t().std(out=None),
    "t.unsqueeze(0)": lambda: t().unsqueeze(),
    "norms need floating-point tensors ... write x.float()": lambda: F.cosine_similarity(
        WHOLE, WHOLE, 0
    ),
    "not int64: write x.float()": lambda: F.normalize(WHOLE, dim=0),
    "bool for the limits ... write x.float()": lambda: F.relu6(WHOLE > 1),
    "hardtanh ... uint8 ... write x.float()": lambda: F.hardtanh(BYTES, -1, 1),
    **{
        f"the path is of type {type(path).__name__} ... nnmpi.save(model.state_dict(), path)": (
            lambda path=path: saved({"a": np.ones(2)}, path)
        )
        for path in (5, None, ["m"], b"m")
    },
}
ATTRIBUTES: dict[str, Callable[[], Any]] = {
    "t.grad after backward()": lambda: t().register_hook(print),
    "'seed_all' ... the GPU with its number": lambda: nnmpi.cuda.seed_all,
    "DataLoader ... nnmpi.utils.data": lambda: nnmpi.DataLoader,
    "nnmpi has no 'foo'": lambda: nnmpi.foo,
    "nn.BatchNorm2d": lambda: F.batch_norm,
    "'cauchy_' ... t[...] = x ... no_grad": lambda: t().cauchy_(),
    "no attribute 'shpae'": lambda: t().shpae,
}
RUNS: dict[str, Callable[[], Any]] = {
    "make a new tensor": lambda: F.relu(nnmpi.ones(2, requires_grad=True), inplace=True),
    "in place ... no_grad": lambda: t().zero_(),
    "shape (2, 3) ... clone()": lambda: PLAIN[:1].expand(2, 3).mul_(2),
    "shape (4, 3) ... clone()": lambda: (t()[:1] * 1).expand(4, 3).mul_(2),
}
TABLES = {ValueError: VALUES, TypeError: TYPES, AttributeError: ATTRIBUTES, RuntimeError: RUNS}
MISTAKES = {(kind, words): call for kind in TABLES for words, call in TABLES[kind].items()}
"""By the error and its words, in which ... stands for any others."""


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake[1])
def test_the_message_says_what_to_write(mistake: tuple[type[Exception], str]) -> None:
    kind, words = mistake
    with refused(words, error=kind):
        MISTAKES[mistake]()


@pytest.mark.parametrize("name", ["max", "min", "argmax", "size", "sum", "mean"])
@pytest.mark.parametrize(("shape", "axis"), [((0,), 1), ((3, 0), 5), ((3, 0), -3), ((), 5)])
def test_axes_that_are_not_there_are_out_of_bounds(
    name: str, shape: tuple[int, ...], axis: int
) -> None:
    with refused(f"axis {axis} is out of", error=IndexError):
        getattr(nnmpi.zeros(shape), name)(axis)


@pytest.mark.parametrize("function", [nnmpi.softmax, nnmpi.log_softmax])
def test_softmax_over_an_empty_axis_is_empty(function: Any) -> None:
    x = nnmpi.tensor(np.ones((3, 0)), requires_grad=True)
    y = function(x, axis=1)
    y.sum().backward()
    assert y.shape == x.grad.shape == (3, 0)
    with pytest.raises(ValueError, match="axis 2 is out of range for 2 axes"):
        function(x, axis=2)
