"""Optimizers of programs with a `step` of their own, written as for PyTorch."""

import copy
import math
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi

W = np.random.default_rng(0).standard_normal((3, 4)).astype("float32")
X = np.random.default_rng(1).standard_normal((8, 4)).astype("float32")


def classes(T: Any) -> tuple[Any, ...]:
    """The optimizers, as classes of a library."""

    class Adam(T.optim.Optimizer):  # type: ignore[misc]
        def __init__(self, params: Any, lr: float = 1e-3, betas: Any = (0.9, 0.999)) -> None:
            self.lr = lr
            super().__init__(params, {"lr": lr, "betas": betas, "eps": 1e-8})

        def __setstate__(self, state: Any) -> None:
            super().__setstate__(state)
            for group in self.param_groups:
                group.setdefault("amsgrad", False)

        @T.no_grad()
        def step(self, closure: Any = None) -> Any:
            loss = None
            if closure is not None:
                with T.enable_grad():
                    loss = closure()
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    state, (beta1, beta2) = self.state[p], group["betas"]
                    if len(state) == 0:
                        state["step"] = 0
                        state["exp_avg"] = T.zeros_like(p, memory_format=T.preserve_format)
                        state["exp_avg_sq"] = T.zeros_like(p.data)
                    state["step"] += 1
                    m, v, t = state["exp_avg"], state["exp_avg_sq"], state["step"]
                    m.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                    v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                    size = group["lr"] * math.sqrt(1 - beta2**t) / (1 - beta1**t)
                    p.addcdiv_(m, v.sqrt().add_(group["eps"]), value=-size)
            return loss

    class Signs(T.optim.Optimizer):  # type: ignore[misc]
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        def step(self) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.data.add_(T.sign(p.grad.data), alpha=-group["lr"])

    return Adam, Signs


def trained(T: Any, make: Any) -> tuple[list[float], dict[str, Any]]:
    """The losses of steps with groups, a schedule and a plain tensor; the state after three."""
    model, extra = T.nn.Linear(4, 3), T.tensor([1.0, 2.0], requires_grad=True)
    with T.no_grad():
        model.weight.copy_(T.from_numpy(W))
        model.bias.zero_()
    opt = make(
        [{"params": [model.weight], "tag": "w"}, {"params": model.bias, "lr": 0.05}], lr=0.01
    )
    opt.add_param_group({"params": [extra]})
    schedule, losses, state = T.optim.lr_scheduler.StepLR(opt, 3, 0.5), [], {}
    for step in range(8):
        if step == 6:
            opt.load_state_dict(state)
        loss = (model(T.from_numpy(X)) ** 2).mean() + (extra**2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
        losses.append(loss.item())
        state = copy.deepcopy(opt.state_dict()) if step == 2 else state
    opt.zero_grad(set_to_none=False)
    assert model.weight.grad.abs().sum() == 0
    return losses, state


@needs_torch
@pytest.mark.parametrize("which", [0, 1])
def test_it_trains_as_in_pytorch(which: int) -> None:
    torch = pytorch()
    ours, state = trained(nnmpi, classes(nnmpi)[which])
    theirs, its_state = trained(torch, classes(torch)[which])
    np.testing.assert_allclose(ours, theirs, 1e-6)
    assert {k: sorted(v) for k, v in state["state"].items()} == {
        k: sorted(v) for k, v in its_state["state"].items()
    }
    assert [sorted(g) for g in state["param_groups"]] == [
        sorted(g) for g in its_state["param_groups"]
    ]


def test_where_it_cannot_be_used() -> None:
    _, signs = classes(nnmpi)
    config = nnmpi.Config(data="iris", model="iris-mlp", steps=1, quiet=True)
    with refused("returned a Signs, whose step is its own", "define _update(x, group)"):
        nnmpi.Trainer(config, optimizer=lambda named: signs([p for _, p in named], 0.1)).fit()
    with refused("this list is empty"):
        signs([], 0.1)

    class Nothing(nnmpi.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})  # type: ignore[typeddict-unknown-key]

    with pytest.raises(TypeError, match="Nothing defines neither step nor _update"):
        Nothing([nnmpi.ones(1, requires_grad=True)])
