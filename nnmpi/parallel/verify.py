"""--verify: the same model on one rank beside the layout, compared after each step.

Every rank trains on the whole batch alone too, so that each checks its own replica.

absolute   max |a - b|
relative   max |a - b| / max |b|, tensor by tensor; for gradients the largest of the whole model
ulp        max |a - b| / distance from max(|a|, |b|) to the next number, element by element
"""

import hashlib
import math
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from nnmpi import backend
from nnmpi.backend import Array
from nnmpi.comm import Comm
from nnmpi.data import Loader
from nnmpi.mesh import Mesh
from nnmpi.nn import Module
from nnmpi.optim import Optimizer
from nnmpi.parallel.strategy import Strategy, Tell
from nnmpi.parallel.worker import Stepped

BOUNDS = {"float64": 1e-10, "float32": 1e-3}
"""The largest relative difference that is let pass, by the type of the parameters."""

SUBJECTS = ("loss", "gradients", "parameters")


class VerifyError(ArithmeticError):
    """The layout does not train as one rank would."""


class Difference(NamedTuple):
    """The largest difference found, in three measures."""

    absolute: float = 0.0
    relative: float = 0.0
    ulp: float = 0.0

    def or_larger(self, other: "Difference") -> "Difference":
        """The larger of each; what is no number is larger than any."""
        return Difference(*np.maximum(self, other).tolist())


class Verified:
    """A layout and one rank, step by step."""

    def __init__(
        self,
        layout: Strategy,
        alone: Strategy,
        models: tuple[Module, Module],
        comm: Comm,
        tell: Tell,
    ) -> None:
        self.mesh: Mesh = layout.mesh
        self.optimizer: Optimizer = layout.optimizer
        self._layout, self._alone, self._models = layout, alone, models
        self._comm, self._tell = comm, tell
        self._largest = dict.fromkeys(SUBJECTS, Difference())

    def steps(self, loader: Loader, epoch: int) -> Generator[Stepped, None, None]:
        """The layout's steps. The first that differs by more than the bound ends all ranks."""
        ours, theirs = (s.steps(loader, epoch) for s in (self._layout, self._alone))
        with closing(ours), closing(theirs):
            for done, expected in zip(ours, theirs, strict=True):
                self._check(done, expected)
                yield done

    def _check(self, done: Stepped, expected: Stepped) -> None:
        mine, whole = (m.parameters() for m in self._models)
        dtype = _host(mine[0].data).dtype
        found = {
            "loss": difference(np.array(done.loss, dtype), np.array(expected.loss, dtype)),
            "gradients": largest(
                [_host(p.grad) for p in mine if p.has_grad],
                [_host(p.grad) for p in whole if p.has_grad],
                common=True,
            ),
            "parameters": largest([_host(p.data) for p in mine], [_host(p.data) for p in whole]),
        }
        agreed, equal = self._gathered(found, done.updated == expected.updated)
        for subject, one in agreed.items():
            self._largest[subject] = self._largest[subject].or_larger(one)
        self._tell({"event": "verify", "step": done.step, **_flat(agreed), "replicas_equal": equal})
        bound = BOUNDS[dtype.name]
        subject = max(agreed, key=lambda s: agreed[s].relative)
        if not equal or not agreed[subject].relative <= bound:
            reason = (
                f"{subject} of the layout differ from those of one rank by "
                f"{agreed[subject].relative:.2g} relative, and the bound is {bound:g}"
                if equal
                else "parameters are not the same on all ranks"
            )
            raise VerifyError(f"step {done.step}: {reason}")

    def _gathered(
        self, found: dict[str, Difference], alike: bool
    ) -> tuple[dict[str, Difference], bool]:
        """The largest differences on any rank, and whether all replicas have the same bits."""
        rows = np.empty((self._comm.size, len(SUBJECTS) * 3 + 1))
        digest = _digest(self._models[0]) if alike else math.nan
        rows[self._comm.rank] = [*(x for d in found.values() for x in d), digest]
        self._comm.all_gather(rows)
        worst = rows.max(axis=0)[:-1].reshape(-1, 3).tolist()
        agreed = {s: Difference(*row) for s, row in zip(SUBJECTS, worst, strict=True)}
        return agreed, bool((rows[:, -1] == rows[0, -1]).all())

    def share(self, rows: np.ndarray) -> Sequence[np.ndarray]:
        return self._layout.share(rows)

    def total(self, sums: np.ndarray) -> None:
        self._layout.total(sums)

    def describe(self) -> dict[str, Any]:
        return {**self._layout.describe(), "verify": True}

    def outcome(self) -> dict[str, Any]:
        return {**self._layout.outcome(), "largest_differences": _flat(self._largest)}

    def close(self) -> None:
        self._layout.close()


def difference(a: np.ndarray, b: np.ndarray, scale: float | None = None) -> Difference:
    """How far two arrays are from each other; relative to `scale`, or to the largest of b."""
    if not a.size:
        return Difference()
    gap = np.abs(a - b)
    absolute = float(gap.max())
    if scale is None:
        scale = float(np.abs(b).max())
    ulps = gap / np.spacing(np.maximum(np.abs(a), np.abs(b)))
    relative = absolute / scale if scale else (0.0 if absolute == 0 else math.inf)
    return Difference(absolute, relative, float(ulps.max()))


def largest(
    mine: Sequence[np.ndarray], whole: Sequence[np.ndarray], common: bool = False
) -> Difference:
    """Over pairs of tensors; with one scale for all, or each by its own."""
    if len(mine) != len(whole):
        return Difference(math.inf, math.inf, math.inf)
    scale = max((float(np.abs(b).max()) for b in whole if b.size), default=0.0) if common else None
    found = Difference()
    for a, b in zip(mine, whole, strict=True):
        found = found.or_larger(difference(a, b, scale))
    return found


def _host(array: Array) -> np.ndarray:
    return backend.to_host(array)


def _digest(model: Module) -> float:
    """52 bits of a hash of all parameters, which a float64 holds exactly."""
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(np.ascontiguousarray(_host(p.data)).tobytes())
    return float(int.from_bytes(digest.digest()[:8], "big") >> 12)


def _flat(differences: dict[str, Difference]) -> dict[str, float]:
    names = Difference._fields
    return {
        f"{s}_{name}": x for s, d in differences.items() for name, x in zip(names, d, strict=True)
    }
