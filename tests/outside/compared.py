"""What comparisons with PyTorch's databases share: its tensors here, results compared, counts."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from nnmpi import nn
from nnmpi.autograd import Tensor

TOLERANCES = {"float32": 2e-5, "float64": 1e-10}
"""The largest difference, as a share of the largest number of an array or of 1."""


class NotSupportedError(Exception):
    """The framework does not have what a sample asks for, and says so."""


class Report(NamedTuple):
    """Of each name how many samples agree, and a line for each that differs; the others ask for
    what is not supported."""

    agreeing: dict[str, int]
    differences: list[str]


def judged(report: Report, name: str, label: str, call: Callable[[], str]) -> None:
    """Counts a sample under a name by what `call` returns: what differs, or nothing."""
    before = report.agreeing.setdefault(name, 0)
    try:
        difference = call()
    except NotSupportedError:
        return
    except Exception as error:
        difference = f"{type(error).__name__}: {error}"
    if difference:
        report.differences.append(f"{name} {label}: {difference}"[:300])
    else:
        report.agreeing[name] = before + 1


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings: samples divide by zero and overflow on purpose."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def bound(call: Callable[..., Any], *args: Any, **options: Any) -> Callable[[], Any]:
    """`call` of these arguments; raises NotSupportedError if it does not take them."""
    try:
        inspect.signature(call).bind(*args, **options)
    except TypeError as error:
        raise NotSupportedError(str(error)) from None
    return lambda: call(*args, **options)


def made(kind: str, *args: Any, **options: Any) -> nn.Module:
    """A module of this name; raises NotSupportedError if there is none, or it refuses options."""
    if not hasattr(nn, kind):
        raise NotSupportedError("there is no module of this kind")
    try:
        module: nn.Module = getattr(nn, kind)(*args, **options)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise NotSupportedError(str(error)) from None
    return module


def forwarded(module: nn.Module, *inputs: Any, **named: Any) -> Any:
    """What a module makes of inputs; raises NotSupportedError if it refuses them.

    Those with a name that its forward does not have, such as input=, come behind the others.
    """
    known = inspect.signature(module.forward).parameters
    others = [value for name, value in named.items() if name not in known]
    try:
        return module(*inputs, *others, **{k: v for k, v in named.items() if k in known})
    except ValueError as error:
        raise NotSupportedError(str(error)) from None


def each(change: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """`value` with every tensor of PyTorch in it changed, and types by their names."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, list | tuple):
        return type(value)([each(change, v) for v in value])  # torch.Size too
    return {k: each(change, v) for k, v in value.items()} if isinstance(value, dict) else value


class Leaves:
    """PyTorch's tensors as tensors here; those with gradients are remembered in pairs."""

    def __init__(self) -> None:
        self.pairs: dict[int, tuple[nn.Parameter, torch.Tensor]] = {}

    def __call__(self, t: torch.Tensor) -> Tensor:
        if t.is_complex() or t.is_sparse or t.dtype is torch.bfloat16:
            raise NotSupportedError(str(t.dtype))
        array = t.detach().numpy().copy()
        if not t.requires_grad:
            return Tensor(array)
        if id(t) not in self.pairs:
            t.grad = None  # samples may share a tensor
            t.retain_grad()  # it may be the result of an operator
            self.pairs[id(t)] = nn.Parameter(array), t
        return self.pairs[id(t)][0]

    def difference(self) -> str:
        """What differs in the gradients."""
        for leaf, t in self.pairs.values():
            ours = np.zeros(leaf.shape, leaf.dtype) if leaf.grad is None else leaf.grad
            theirs = torch.zeros_like(t) if t.grad is None else t.grad
            found = difference(ours, theirs)
            if found:
                return f"gradient: {found}"
        return ""


def backward(ours: Any, theirs: Any, seed: int = 0) -> None:
    """The gradients of the results, weighted by the same random numbers."""
    rng, roots = np.random.default_rng(seed), []
    for y, z in zip(listed(ours), listed(theirs), strict=True):
        if z.requires_grad:
            w = rng.standard_normal(tuple(z.shape)).astype(str(z.dtype).removeprefix("torch."))
            roots.append(((y * w).sum(), (z * torch.from_numpy(np.asarray(w))).sum()))
    if roots:
        sum((y for y, _ in roots[1:]), roots[0][0]).backward()
        sum((z for _, z in roots[1:]), roots[0][1]).backward()


def listed(result: Any) -> list[Any]:
    return [*result] if isinstance(result, list | tuple) else [result]


def results_differ(ours: Any, theirs: Any) -> str:
    """What differs in the values, or nothing."""
    pairs = listed(ours), listed(theirs)
    if len(pairs[0]) != len(pairs[1]):
        return f"{len(pairs[0])} results for {len(pairs[1])}"
    found = (difference(y, z) for y, z in zip(*pairs, strict=True))
    return next((f"value: {text}" for text in found if text), "")


def difference(ours: Any, theirs: Any) -> str:
    """How an array differs from PyTorch's, or nothing."""
    a = np.asarray(ours.numpy() if isinstance(ours, Tensor) else ours)
    b = np.asarray(theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else theirs)
    if a.shape != b.shape:
        return f"shape {a.shape} for {b.shape}"
    if a.dtype != b.dtype:
        return f"type {a.dtype} for {b.dtype}"
    if a.dtype.kind != "f":
        return "" if (a == b).all() else f"{a} for {b}"
    odd = ~np.isfinite(b)
    if not np.array_equal(a[odd], b[odd], equal_nan=True):
        return f"{a[odd][:3]} for {b[odd][:3]}"
    off = np.abs(a[~odd] - b[~odd]).max(initial=0.0)
    scale = np.abs(b[~odd]).max(initial=1.0)
    return "" if off <= TOLERANCES[a.dtype.name] * scale else f"off by {off / scale:.1e}"
