"""--verify: the same model on one rank beside the layout, compared after each step.

Every rank trains on the whole batch alone too, so that each checks its own replica.

absolute   max |a - b|
relative   max |a - b| / max |b|, tensor by tensor; for gradients the largest of the whole model.
           In float32 loss and gradients are set against their largest in the run so far
ulp        max |a - b| / distance from max(|a|, |b|) to the next number, element by element

In float64 the two are trained side by side, and must stay together. In float32 rounding parts them:
a ReLU that is just on in one is just off in the other, and Adam makes a step of full size of a
gradient that is nothing but rounding. So there each half of a step is compared by itself: loss and
gradients, from parameters and buffers that the one rank takes over from the layout; and the update,
which an optimizer on one rank makes of the layout's own gradients (`Update`).
"""

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from nnmpi import backend
from nnmpi.backend import Array
from nnmpi.comm import Comm
from nnmpi.data import Loader
from nnmpi.mesh import Mesh
from nnmpi.nn import Module
from nnmpi.nn.bits import parameters_sha256
from nnmpi.optim import Optimizer
from nnmpi.parallel.checks.reference_update import Update
from nnmpi.parallel.executor import Stepped
from nnmpi.parallel.strategy import AgreedError, Strategy, Tell

SUBJECTS = ("loss", "gradients", "parameters")

BOUNDS = {
    "float64": dict.fromkeys(SUBJECTS, 1e-10),
    "float32": {"loss": 1e-4, "gradients": 2e-2, "parameters": 1e-6},
}
"""The largest relative difference that is let pass, by the type of the parameters."""


class VerifyError(AgreedError):
    """The layout does not train as one rank would."""


class Difference(NamedTuple):
    """The largest difference found, in three measures."""

    absolute: float = 0.0
    relative: float = 0.0
    ulp: float = 0.0

    def or_larger(self, other: "Difference") -> "Difference":
        """The larger of each; what is no number is larger than any."""
        return Difference(*np.maximum(self, other).tolist())


class Outcome(NamedTuple):
    """What all ranks have found of a step."""

    largest: dict[str, Difference]  # on any rank
    equal: bool  # all replicas have the same bits
    unlike: bool  # some rank found that one of the two left the step out, and the other made it
    lost: bool  # neither loss is a number: there is nothing to compare

    def reason(self, bounds: Mapping[str, float]) -> str | None:
        """What is wrong with it, if anything."""
        if self.lost:
            return None
        if self.unlike:
            return "the layout or one rank left it out as not finite, and the other made it"
        if not self.equal:
            return "parameters are not the same on all ranks"
        for subject, found in self.largest.items():
            bound = bounds[subject]
            if not found.relative <= bound:
                return (
                    f"{subject} of the layout differ from those of one rank by "
                    f"{found.relative:.2g} relative, and the bound is {bound:g}"
                )
        return None


class Verified:
    """A layout and one rank, step by step."""

    def __init__(
        self,
        layout: Strategy,
        alone: Strategy,
        models: tuple[Module, Module],
        update: Update | None,
        comm: Comm,
        tell: Tell,
    ) -> None:
        self.mesh: Mesh = layout.mesh
        self.optimizer: Optimizer = layout.optimizer
        self.both = layout, alone
        own = () if update is None else (update.optimizer,)
        self.optimizers = layout.optimizer, alone.optimizer, *own
        self._layout, self._models, self._update = layout, models, update
        self._comm, self._tell, self._begun = comm, tell, False
        self._dtype = _host(models[0].parameters()[0].data).dtype
        self._largest = dict.fromkeys(SUBJECTS, Difference())
        self._scales = dict.fromkeys(SUBJECTS, 0.0)  # the largest numbers of the one rank

    def steps(self, loader: Loader, epoch: int) -> Generator[Stepped, None, None]:
        """The layout's steps. The first that differs by more than the bound ends all ranks."""
        for model in self._models:  # whoever has built the one that is trained here knows no twin
            model.train()
        if not self._begun:  # whatever was loaded since they were made
            self._take_over()
            self._begun = True
        ours, theirs = (s.steps(loader, epoch) for s in self.both)
        with closing(ours), closing(theirs):
            for done, expected in zip(ours, theirs, strict=True):
                self._check(done, expected)
                yield done

    def _check(self, done: Stepped, expected: Stepped) -> None:
        found = self._gathered(self._compared(done, expected), done, expected)
        for subject, one in found.largest.items():
            self._largest[subject] = self._largest[subject].or_larger(one)
        told = {**_flat(found.largest), "replicas_equal": found.equal}
        self._tell({"event": "verify", "step": done.step, **told})
        reason = found.reason(BOUNDS[self._dtype.name])
        if reason is not None:
            raise VerifyError(f"step {done.step}: {reason}")
        if self._update is not None:
            self._take_over()

    def _take_over(self) -> None:
        """Makes the one rank's parameters and buffers those of the layout."""
        layout, alone = self._models
        alone.load_state_dict(layout.state_dict())
        if self._update is not None:
            self._update.take_over()

    def _compared(self, done: Stepped, expected: Stepped) -> dict[str, Difference]:
        """What differs on this rank."""
        mine, whole = (m.parameters() for m in self._models)
        with np.errstate(all="ignore"):
            return {
                "loss": self._beside(
                    "loss",
                    [np.array(done.loss, self._dtype)],
                    [np.array(expected.loss, self._dtype)],
                ),
                "gradients": self._beside(
                    "gradients",
                    [_host(p.grad) for p in mine if p.has_grad],
                    [_host(p.grad) for p in whole if p.has_grad],
                ),
                "parameters": self._moved(done),
            }

    def _beside(
        self, subject: str, mine: Sequence[np.ndarray], whole: Sequence[np.ndarray]
    ) -> Difference:
        """How far they are apart, beside the largest number of the one rank.

        That of this step; in float32 of the run so far: where all is learnt loss and gradients come
        near 0, and float32's rounding does not.
        """
        before = 0.0 if self._update is None else self._scales[subject]
        self._scales[subject] = max([before, *map(_scale, whole)])
        return largest(mine, whole, self._scales[subject])

    def _moved(self, done: Stepped) -> Difference:
        """How far the parameters are from where they should be after the step."""
        if self._update is not None:
            pairs = self._update.follow(done.step - 1, done.updated)
        else:
            mine, whole = (m.parameters() for m in self._models)
            pairs = ((p.data, q.data) for p, q in zip(mine, whole, strict=True))
        found = Difference()
        for a, b in pairs:
            found = found.or_larger(difference(_host(a), _host(b)))
        return found

    def _gathered(self, found: dict[str, Difference], done: Stepped, expected: Stepped) -> Outcome:
        """The same for all ranks."""
        rows = np.empty((self._comm.size, len(SUBJECTS) * 3 + 3))
        lost = not (math.isfinite(done.loss) or math.isfinite(expected.loss))
        facts = [done.updated != expected.updated, not lost, _digest(self._models[0])]
        rows[self._comm.rank] = [*(x for d in found.values() for x in d), *facts]
        self._comm.all_gather(rows)
        *worst, unlike, known, _ = rows.max(axis=0).tolist()
        agreed = [Difference(*worst[i : i + 3]) for i in range(0, len(worst), 3)]
        equal = bool((rows[:, -1] == rows[0, -1]).all())
        largest = dict(zip(SUBJECTS, agreed, strict=True))
        return Outcome(largest, equal, bool(unlike), not known)

    def share(self, rows: np.ndarray) -> Sequence[np.ndarray]:
        return self._layout.share(rows)

    def total(self, sums: np.ndarray) -> None:
        self._layout.total(sums)

    def describe(self) -> dict[str, Any]:
        return {**self._layout.describe(), "verify": True}

    def outcome(self) -> dict[str, Any]:
        return {**self._layout.outcome(), "largest_differences": _flat(self._largest)}

    def close(self) -> None:
        for strategy in self.both:
            strategy.close()


def difference(a: np.ndarray, b: np.ndarray, scale: float | None = None) -> Difference:
    """How far two arrays are from each other; relative to `scale`, or to the largest of b.

    What is not finite differs from all but its like: a NaN from a NaN, or an infinity from the
    same one, by nothing.
    """
    if not a.size:
        return Difference()
    gap = np.abs(a - b)
    gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.where(np.isnan(gap), np.inf, gap))
    absolute = float(gap.max())
    if scale is None:
        scale = _scale(b)
    ulps = np.where(gap > 0, gap / np.spacing(np.maximum(np.abs(a), np.abs(b))), 0)
    ulps = np.where(np.isnan(ulps), np.inf, ulps)
    relative = 0.0 if absolute == 0 else (absolute / scale if scale else math.inf)
    return Difference(absolute, relative, float(ulps.max()))


def _scale(b: np.ndarray) -> float:
    """The largest finite number of an array, by its size."""
    return float(np.abs(b, where=np.isfinite(b), out=np.zeros_like(b)).max(initial=0))


def largest(mine: Sequence[np.ndarray], whole: Sequence[np.ndarray], scale: float) -> Difference:
    """Over pairs of tensors, relative to one number for all."""
    if len(mine) != len(whole):
        return Difference(math.inf, math.inf, math.inf)
    found = Difference()
    for a, b in zip(mine, whole, strict=True):
        found = found.or_larger(difference(a, b, scale))
    return found


def _host(array: Array) -> np.ndarray:
    return backend.to_host(array)


def _digest(model: Module) -> float:
    """52 bits of the hash of all parameters, which a float64 holds exactly."""
    return float(int(parameters_sha256(model)[:13], 16))


def _flat(differences: dict[str, Difference]) -> dict[str, float]:
    names = Difference._fields
    return {
        f"{s}_{name}": x for s, d in differences.items() for name, x in zip(names, d, strict=True)
    }
