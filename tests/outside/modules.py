"""PyTorch's databases of modules and optimizers against those of this framework.

    python tests/outside/modules.py

A module is made with the arguments of each sample, gets the weights of PyTorch's, and runs in
training and in evaluation mode, in float32 and float64: outputs, gradients of inputs and weights,
and buffers are compared. An optimizer takes the options of each sample and 25 steps, and the
parameters are compared after each. What a constructor or a module refuses counts as not supported.
Not covered: modules without a counterpart of the same name, and those of random numbers.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from compared import (
    Leaves,
    NotSupportedError,
    Report,
    backward,
    difference,
    each,
    forwarded,
    judged,
    made,
    quiet,
    results_differ,
)
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db

from nnmpi import nn, optim

STEPS = 25


def name_of(info: Any) -> str:
    return info.module_cls.__name__


def ours_of(theirs: torch.nn.Module, args: Any, options: dict[str, Any], dtype: str) -> nn.Module:
    """A module of this framework with PyTorch's arguments and weights."""
    plain = Leaves()
    module = made(type(theirs).__name__, *each(plain, args), **each(plain, options))
    module.to(dtype)
    state = {name: t.detach().numpy() for name, t in theirs.state_dict().items()}
    module.load_state_dict({name: state[name] for name in module.state_dict()})
    return module.train(theirs.training)


def module_differs(info: Any, sample: Any, dtype: torch.dtype, training: bool) -> str:
    """What differs between two modules on one input, or nothing."""
    args, options = sample.constructor_input.args, sample.constructor_input.kwargs
    given = (*args, *options.values())
    if any(isinstance(a, torch.nn.Module) or a is torch.nn.functional.gelu for a in given):
        raise NotSupportedError("an argument is a module or a function of PyTorch's")
    theirs = info.module_cls(*args, **options).to(dtype).train(training)
    ours = ours_of(theirs, args, options, str(dtype).removeprefix("torch."))
    if sample.forward_input is None:
        return ""
    leaves = Leaves()
    inputs, named = sample.forward_input.args, sample.forward_input.kwargs
    if any(isinstance(x, torch.Tensor) and x.isnan().any() for x in inputs):
        raise NotSupportedError("the sample is not a number: it is the log of negative numbers")
    expected = theirs(*inputs, **named)
    if getattr(theirs, "reduction", "") == "mean" and expected.isnan().all():
        raise NotSupportedError("the mean of no labels is 0 here")
    y = forwarded(ours, *each(leaves, inputs), **each(leaves, named))
    found = results_differ(y, expected)
    if found:
        return found
    backward(y, expected)
    return leaves.difference() or weights_differ(ours, theirs)


def weights_differ(ours: nn.Module, theirs: torch.nn.Module) -> str:
    """What differs in the gradients of parameters, and in buffers."""
    there = dict(theirs.named_parameters())
    for name, p in ours.named_parameters():
        expected = there[name].grad
        if expected is not None and (text := difference(p.grad, expected)):
            return f"gradient of {name}: {text}"
    state = ours.state_dict()
    for name, t in theirs.named_buffers():
        is_loss = isinstance(theirs, torch.nn.modules.loss._Loss)  # its weight is no state here
        if not is_loss and (text := difference(state[name], t)):
            return f"{name}: {text}"
    return ""


def modules(every: int = 1) -> Report:
    """All modules that both libraries have, on all samples or on one in so many."""
    report = Report({}, [], {})
    for info in module_db:
        if not hasattr(nn, name_of(info)):
            continue
        for dtype in (torch.float32, torch.float64):
            for training in (True, False):
                torch.manual_seed(0)
                samples = info.module_inputs_func(
                    info, device="cpu", dtype=dtype, requires_grad=True, training=training
                )
                for i, s in [*enumerate(samples)][::every]:
                    label = f"{dtype} {'training' if training else 'evaluation'} {i} {s.desc}"
                    judged(
                        report,
                        name_of(info),
                        label,
                        called(module_differs, info, s, dtype, training),
                    )
    return report


def called(function: Callable[..., str], *args: Any) -> Callable[[], str]:
    return lambda: function(*args)


def squared_distance(parameters: list[Any]) -> Callable[[], Any]:
    """A closure that computes the squared distance of parameters from 1, and its gradients."""

    def closure() -> Any:
        for p in parameters:
            p.grad = None
        loss = sum(((p - 1) ** 2).sum() for p in parameters)
        loss.backward()
        return loss

    return closure


@contextmanager
def numbers_in_float64() -> Iterator[None]:
    """A context in which PyTorch's optimizers keep numbers of their own, such as ASGD's rate, in
    float64."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(default)


def optimizer_differs(name: str, options: dict[str, Any], has_closure: bool) -> str:
    """What differs between the trajectories of two optimizers, or nothing."""
    rng = np.random.default_rng(0)
    start = [rng.standard_normal(shape) for shape in ((5, 3), (3,), (2, 2, 2))]
    mine = [nn.Parameter(a) for a in start]
    try:
        ours = getattr(optim, name)(mine, **options)
    except (TypeError, ValueError) as error:
        raise NotSupportedError(str(error)) from None
    theirs = [torch.nn.Parameter(torch.tensor(a)) for a in start]
    oracle = getattr(torch.optim, name)(theirs, **options)
    for t in range(STEPS):
        for p, q in zip(mine, theirs, strict=True):
            p.grad = rng.standard_normal(p.shape)
            q.grad = torch.tensor(p.grad_array)
        ours.step(*[squared_distance(mine)] * has_closure)
        with numbers_in_float64():
            oracle.step(*[squared_distance(theirs)] * has_closure)
        for p, q in zip(mine, theirs, strict=True):
            if text := difference(p, q):
                return f"step {t}: {text}"
    return ""


def optimizers() -> Report:
    """All optimizers that both libraries have, with all options."""
    report = Report({}, [], {})
    for info in optim_db:
        name = info.optim_cls.__name__
        if hasattr(optim, name):
            for s in info.optim_inputs_func(device="cpu"):
                differs = called(optimizer_differs, name, s.kwargs, info.step_requires_closure)
                judged(report, name, str(s.kwargs), differs)
    return report


def main() -> int:
    status = 0
    with quiet():
        for what, report, known in (
            ("modules", modules(), len(module_db)),
            ("optimizers", optimizers(), len(optim_db)),
        ):
            print("\n".join(report.lines(what, known - len(report.counts))))
            status |= bool(report.differences)
    return status


if __name__ == "__main__":
    sys.exit(main())
