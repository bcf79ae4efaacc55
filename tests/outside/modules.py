"""PyTorch's database of modules against those of this framework.

A module is made with the arguments of each sample, gets the weights of PyTorch's, and runs in
training and in evaluation mode, in float32 and float64: outputs, gradients of inputs and weights,
and buffers are compared. What a constructor or a module refuses counts as not supported. Not
covered: modules without a counterpart of the same name, and those of random numbers.
"""

from functools import partial
from typing import Any

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
    results_differ,
)
from torch.testing._internal.common_modules import module_db

from nnmpi import nn


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
    report = Report({}, [])
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
                    differs = partial(module_differs, info, s, dtype, training)
                    judged(report, name_of(info), label, differs)
    return report
