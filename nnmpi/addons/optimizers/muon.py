"""Muon: updates a matrix by its momentum, made nearly orthogonal.

    momentum      B <- m B + (1 - m) G;  U = m B + (1 - m) G with nesterov, else B
    orthogonal    X = U / |U|, then `ns_steps` times  X <- a X + (b A + c A A) X,  A = X X^T
    step          P <- (1 - lr * weight_decay) P - lr * ratio * X

The iteration needs a whole matrix, so one rank updates all of it. Ranks with copies of a matrix all
compute the same update, without messages, and get the same bits if their processors and BLAS are
alike; --check-copies compares the copies. Layouts in which a rank updates only a part of a matrix
are refused: by `parallel/refusals.py` for options, and here for an optimizer that a user makes.
"""

import math
from collections.abc import Sequence
from typing import Self

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.nn.parameter import in_shape
from nnmpi.nn.store import Operands
from nnmpi.optim.groups import Group, Option, Parameters, grouped
from nnmpi.optim.optimizer import Optimizer, check_betas, check_eps, non_negative

ORIGINAL, MATCH_RMS_ADAMW = "original", "match_rms_adamw"


class Muon(Optimizer):
    """Muon (Jordan and others, 2024), as in PyTorch, for matrices: parameters with two axes.

    The iteration is computed in the type of the values that are updated, where PyTorch rounds to
    bfloat16. Groups with `adamw=True` may have parameters of any shape; AdamW updates them, with
    `betas`, `eps`, and `momentum_buffer` as the running mean of gradients. `with_adamw` makes such
    groups.

    adjust_lr_fn   how the rate of a matrix depends on its shape: "original" (None means the same)
                   is for learning rates tuned for Muon, "match_rms_adamw" for those tuned for AdamW
    """

    by_parameter = whole = True
    weight_decay, momentum, nesterov, betas = Option(), Option(), Option(), Option()
    ns_coefficients, eps, ns_steps, adjust_lr_fn = Option(), Option(), Option(), Option()

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        adamw: bool = False,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        super().__init__(
            parameters,
            lr=lr,
            weight_decay=weight_decay,
            momentum=momentum,
            nesterov=nesterov,
            ns_coefficients=ns_coefficients,
            eps=eps,
            ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn,
            adamw=adamw,
            betas=betas,
        )

    @classmethod
    def with_adamw(
        cls, parameters: Parameters, lr: float = 1e-3, weight_decay: float = 0.1
    ) -> Self:
        """Makes a Muon for any parameters: AdamW updates those that are not matrices. Embeddings
        and heads are matrices. Both get the same rate and weight decay, tuned for AdamW: with
        "match_rms_adamw" the updates of matrices are as large as AdamW's."""
        groups = []
        for group in grouped(parameters, {"lr": lr, "weight_decay": weight_decay}):
            matrices = [p for p in group["params"] if p.ndim == 2]
            others = [p for p in group["params"] if p.ndim != 2]
            # also empty ones: all ranks of a pipeline have equal groups, and so the same state
            groups += [group | {"params": matrices}]
            groups += [group | {"params": others, "adamw": True, "eps": 1e-8}]
        return cls(groups, lr, weight_decay, adjust_lr_fn=MATCH_RMS_ADAMW)

    def _take_groups(self, groups: list[Group]) -> None:
        super()._take_groups(groups)
        self._check_slices()

    def _check(self, group: Group) -> None:
        for name in ("weight_decay", "momentum"):
            non_negative(name, group[name])
        check_betas(group["betas"])
        check_eps(group["eps"])
        if len(group["ns_coefficients"]) != 3:
            raise ValueError(f"ns_coefficients {group['ns_coefficients']} must be three numbers")
        if not 0 <= group["ns_steps"] < 100:
            raise ValueError(f"ns_steps {group['ns_steps']} must be at least 0 and less than 100")
        if group["adjust_lr_fn"] not in (None, ORIGINAL, MATCH_RMS_ADAMW):
            raise ValueError(
                f"adjust_lr_fn {group['adjust_lr_fn']!r} must be {ORIGINAL!r} or "
                f"{MATCH_RMS_ADAMW!r}"
            )
        for place in () if group["adamw"] else (p.place for p in group["params"]):
            if len(place.shape) != 2:
                raise ValueError(
                    f"Muon updates matrices, and {place.path or 'a parameter'} has the shape "
                    f"{place.shape}: put it into a group with adamw=True, as Muon.with_adamw does"
                )
            if place.local_shape != place.shape:
                raise ValueError(
                    f"Muon needs whole matrices, and this rank has {place.local_shape} of "
                    f"{place.path} with the shape {place.shape}: use --tp 1"
                )

    def _check_slices(self) -> None:
        super()._check_slices()
        for i, p in enumerate(self.parameters):
            updated = sum(hi - lo for lo, hi in self.owned(i))
            if 0 < updated < p.size and not self.param_groups[self._groups[i]]["adamw"]:
                raise ValueError(
                    f"Muon needs whole matrices, and this rank updates {updated} of {p.size} "
                    f"elements of {p.place.path}: use --allreduce ring and --zero 0, or "
                    "--optimizer muon"
                )

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer", "exp_avg_sq") if group["adamw"] else ("momentum_buffer",)

    def _group_of(self, number: int, i: int, lr_factor: float) -> Group:
        return super()._group_of(number, i, lr_factor) | {"parameter": self.parameters[i]}

    def _update(self, x: Operands, group: Group) -> None:
        update = self._adamw(x, group) if group["adamw"] else self._muon(x, group)
        values = x.values
        values *= 1 - group["lr"] * group["weight_decay"]
        values[: update.size] -= update

    def _adamw(self, x: Operands, group: Group) -> Array:
        """Returns by how much AdamW changes a parameter in this step, without weight decay."""
        (beta1, beta2), g = group["betas"], x.grads
        m, v = x.state["momentum_buffer"], x.state["exp_avg_sq"]
        m += (1 - beta1) * (g - m)
        v += (1 - beta2) * (g * g - v)
        root = xp_of(v).sqrt(v / (1 - beta2**x.t)) + group["eps"]
        return group["lr"] / (1 - beta1**x.t) * m / root

    def _muon(self, x: Operands, group: Group) -> Array:
        """Returns Muon's change of a matrix, without weight decay, flat in order of memory."""
        momentum, p, g = group["momentum"], group["parameter"], x.grads
        if len(g) < p.size:
            raise ValueError(
                f"Muon needs whole matrices, and this update is of {len(g)} of {p.size} elements "
                f"of {p.place.path}: leave out --memory"
            )
        m = x.state["momentum_buffer"]
        m += (1 - momentum) * (g - m)
        flat = g + momentum * (m - g) if group["nesterov"] else m
        matrix = in_shape(flat[: p.size], p.shape, p.memory_axes)  # without the padding
        change = (
            group["lr"]
            * _ratio(p.shape, group["adjust_lr_fn"])
            * orthogonal(matrix, group["ns_coefficients"], group["eps"], group["ns_steps"])
        )
        return change.transpose(p.memory_axes).reshape(-1)


def orthogonal(matrix: Array, coefficients: Sequence[float], eps: float, steps: int) -> Array:
    """Returns a matrix with the same singular vectors and singular values near 1, mostly from 0.7
    to 1.2, by a Newton-Schulz iteration."""
    (a, b, c), xp = coefficients, xp_of(matrix)
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix  # the products A are of the shorter side
    x = x / xp.maximum(xp.sqrt(xp.sum(xp.square(x))), eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if is_tall else x


def _ratio(shape: Sequence[int], adjust_lr_fn: str | None) -> float:
    """Returns the factor of a matrix's learning rate, by its shape and `adjust_lr_fn`."""
    rows, columns = shape
    if adjust_lr_fn == MATCH_RMS_ADAMW:
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))
