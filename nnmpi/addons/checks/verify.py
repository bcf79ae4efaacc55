"""--verify: trains the same model on one rank in parallel to the run on several ranks (the layout),
and compares both after each step.

Every rank also trains the whole model on the whole batch alone, and checks the part of the layout's
model that it owns.

absolute   max |a - b|
relative   max |a - b| / max |b|, tensor by tensor. For gradients max |b| is that of the whole
           model, for a running mean it is at least the deviation. For loss and gradients it is at
           least the largest so far in the run (in float64, a ten-thousandth of that)
ulp        max |a - b| / distance from max(|a|, |b|) to the next number, element by element

Rounding makes two equal trainings diverge: a ReLU is just on in one and just off in the other, and
Adam makes a full step from a gradient that consists of rounding errors. So the two halves of a step
are compared separately. Loss and gradients are compared from equal parameters and buffers, which
the single rank copies from the layout after each step. The update is compared with that of an
optimizer on one rank that gets the layout's own gradients (`ReferenceUpdate`). For 16-bit
parameters this is the update of the masters.
"""

import math
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons.checks.reference_update import (
    BOUND,
    Difference,
    ReferenceUpdate,
    difference,
    largest,
    scale_of,
    summed_gradient,
)
from nnmpi.addons.checks.single_rank import single_rank
from nnmpi.arrays.backend import to_host
from nnmpi.arrays.dtypes import types_of
from nnmpi.data import Loader
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Place
from nnmpi.nn.state import assign
from nnmpi.options.config import Config
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.model.mover import move
from nnmpi.parallel.model.state import held_tensors
from nnmpi.parallel.model.whole import first_difference
from nnmpi.parallel.step.executor import StepResult, StepState
from nnmpi.parallel.step.objective import Outputs
from nnmpi.parallel.strategies import SingleRank
from nnmpi.parallel.strategy import AgreedError, Strategy, TrainSpec
from nnmpi.run.training import RunParts

SUBJECTS = ("loss", "gradients", "parameters", "buffers")

BOUNDS = {
    "float64": dict.fromkeys(SUBJECTS, 1e-10),
    "float32": {"loss": 1e-4, "gradients": 2e-2, "parameters": BOUND, "buffers": 1e-4},
    "float16": {"loss": 2e-3, "gradients": 1e-1, "parameters": BOUND, "buffers": 2e-3},
    "bfloat16": {"loss": 2e-2, "gradients": 3e-1, "parameters": BOUND, "buffers": 2e-2},
}
"""The largest accepted relative difference of each subject, by the dtype of the parameters.

In 16 bits this is two roundings of a loss, and more for a gradient, which sums many rounded terms.
Parameters are compared by their masters.
"""

MAX_LONE_SKIPS = 3
"""The number of consecutive float16 steps that only the layout or only one rank may skip."""


class VerifyError(AgreedError):
    """Raised if a run on several ranks does not train as one rank does."""


class Comparison(NamedTuple):
    """The result of comparing a step of the run with that of a single rank, combined over all
    ranks.

    largest      a dict: subject, such as "gradients" -> the largest difference on any rank
    equal        True if copies of parameters on several ranks have the same bits
    one_skipped  True if on some rank only one of the two steps was skipped, as not finite
    diverged     True if neither loss is finite: there is nothing to compare
    """

    largest: dict[str, Difference]
    equal: bool
    one_skipped: bool
    diverged: bool

    def reason(self, bounds: Mapping[str, float]) -> str | None:
        """Returns why a step fails the check, by each subject's bound, or None if it passes."""
        if self.diverged:
            return None
        if self.one_skipped:
            return "only one of the two, the layout or the single rank, skipped it as not finite"
        if not self.equal:
            return "parameters are not the same on all ranks"
        for subject, worst in self.largest.items():
            bound = bounds[subject]
            if not worst.relative <= bound:
                return (
                    f"{subject} of the layout differ from those of one rank by "
                    f"{worst.relative:.2g} relative, and the bound is {bound:g}"
                )
        return None


class VerifiedStrategy:
    """The strategy of --verify: trains on all ranks, and the same model on each rank alone, and
    compares both after each step.

    ours    the run's own strategy
    single  the strategy of the second copy of the model, on one rank
    spec    what the run trains; `single_rank` is the second copy
    """

    position = None

    def __init__(self, ours: Strategy, single: Strategy, spec: TrainSpec) -> None:
        assert spec.single_rank is not None
        self.layout, self.optimizer, self.full_state = ours.layout, ours.optimizer, ours.full_state
        self.last, self.traffic = ours.last, ours.traffic
        self._both, self._part, self._update = (ours, single), spec.part, ReferenceUpdate(spec)
        self._models = spec.task.model, spec.single_rank.task.model
        self._comm, self._on_event, self._started = ours.layout.all, spec.control.event, False
        self._dtype = to_host(next(self._models[1].parameters()).array).dtype
        self._largest = dict.fromkeys(SUBJECTS, Difference())
        self._alone = 0  # steps in a row that only one of the two has skipped
        self._scales = dict.fromkeys(SUBJECTS, 0.0)  # the largest values of the single rank so far

    def steps(self, loader: Loader, start: StepState) -> Generator[StepResult, None, None]:
        """Makes the steps of an epoch, from `start` on, with all ranks and on each rank alone;
        yields the results of the former. Raises VerifyError on all ranks if a step differs from the
        single rank's by more than the bound."""
        for model in self._models:  # whoever calls train() or eval() knows only one of them
            model.train()
        if not self._started:  # parameters may have been loaded since both were made
            self._copy_model()
            self._copy_optimizer_state()
            self._copy_settings()
            self._started = True
        ours, theirs = (s.steps(loader, start) for s in self._both)
        with closing(ours), closing(theirs):
            for done, expected in zip(ours, theirs, strict=True):
                self._check(done, expected)
                yield done
                self._copy_settings()

    def _check(self, done: StepResult, expected: StepResult) -> None:
        comparison = self._gather(self._compare(done, expected), done, expected)
        for subject, worst in comparison.largest.items():
            self._largest[subject] = largest([self._largest[subject], worst])
        step = done.state.step
        facts = {**_flat(comparison.largest), "replicas_equal": comparison.equal}
        self._on_event({"event": "verify", "step": step, **facts})
        reason = comparison.reason(BOUNDS[self._dtype.name])
        if reason is not None:
            raise VerifyError(f"step {step}: {reason}")
        self._copy_model()

    def _copy_model(self) -> None:
        """Copies parameters and buffers of the run to the single rank's model."""
        targets = {place.path: tensor for place, tensor in self._models[1].tensors()}
        for name, values in self.full_state.on_all_ranks():
            assign(targets[name], values)
            self._update.copy_parameter(name, values)

    def _copy_optimizer_state(self) -> None:
        """Copies the run's optimizer state, perhaps loaded, to the single rank's."""
        source, target = (o.state_arrays() for o in (self.optimizer, self._update.optimizer))
        move([*source], [*target], self._comm)

    def _copy_settings(self) -> None:
        """Copies what callbacks may have changed: options, and requires_grad."""
        groups = self._update.optimizer.param_groups, self.optimizer.param_groups
        for group, ours in zip(*groups, strict=True):
            group |= {**ours, "params": group["params"]}
        for ours, single in zip(*(m.parameters() for m in self._models), strict=True):
            single._requires_grad = ours._requires_grad

    def _compare(self, done: StepResult, expected: StepResult) -> dict[str, Difference]:
        """Returns each subject's largest difference on this rank between a step's results in the
        run, `done`, and on a single rank, `expected`."""
        ours, theirs = (np.array(x.loss, types_of(self._dtype).sums) for x in (done, expected))
        whole_gradients = (
            to_host(summed_gradient(q)) for q in self._models[1].parameters() if q.has_grad
        )
        gradients = self._gradients()
        if self._dtype == "float16" and not (done.updated and expected.updated):
            # gradients of a skipped step are not finite, so they are compared with themselves; all
            # ranks read them all the same, as that is collective
            gradients = ((gradient, gradient) for _, gradient in gradients)
        with np.errstate(all="ignore"):
            return {
                "loss": self._scaled("loss", [(ours, theirs)], [theirs]),
                "gradients": self._scaled("gradients", gradients, whole_gradients),
                "parameters": self._parameters(done),
                "buffers": self._buffers(),
            }

    def _pairs(self) -> Iterator[tuple[Place, Any, Any]]:
        """Yields (place, part, whole) of each tensor: this rank's, and the single rank's."""
        whole_tensors = {place.path: tensor for place, tensor in self._models[1].tensors()}
        for place, tensor in held_tensors(self._part):
            yield place, tensor, whole_tensors[place.path]

    def _gradients(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for place, p, q in self._pairs():
            if isinstance(p, Parameter) and (p.has_grad or q.has_grad):
                yield _gradient(p), _gradient(q)[place.slices]

    def _buffers(self) -> Difference:
        """Returns the largest difference of buffers from the single rank's."""
        alone = {
            place.path: to_host(b._array).astype(float)
            for place, b in self._models[1].tensors()
            if not isinstance(b, Parameter)
        }
        return largest(
            difference(to_host(a._array).astype(float), b[place.slices], _scale(place.path, alone))
            for place, a, _ in self._pairs()
            if (b := alone.get(place.path)) is not None
        )

    def _scaled(
        self,
        subject: str,
        pairs: Iterable[tuple[np.ndarray, np.ndarray]],
        whole_tensors: Iterable[np.ndarray],
    ) -> Difference:
        """Returns the largest difference between the pairs of arrays, relative to the largest value
        in `whole_tensors` of the single rank.

        Near the minimum loss and gradients approach 0, but rounding errors do not. So the scale is
        at least the largest value so far in the run; in float64, a ten-thousandth of that.
        """
        scale = max(map(scale_of, whole_tensors), default=0.0)
        self._scales[subject] = of_run = max(self._scales[subject], scale)
        least = of_run * (1e-4 if self._dtype == "float64" else 1.0)
        return largest(difference(a, b, max(scale, least)) for a, b in pairs)

    def _parameters(self, done: StepResult) -> Difference:
        """Returns the largest difference between the parameters after a step and those that an
        optimizer on one rank computes from the same gradients."""
        pairs = self._update.follow(done.state.step - 1, done.updated)
        return largest(difference(a, b) for a, b in pairs)

    def _gather(
        self, differences: dict[str, Difference], done: StepResult, expected: StepResult
    ) -> Comparison:
        """Combines the differences of all ranks after a step into one comparison, the same on
        all."""
        finite = math.isfinite(done.loss) or math.isfinite(expected.loss)
        unequal = first_difference(self._part, self._comm) is not None
        self._alone = self._alone + 1 if done.updated != expected.updated else 0
        # a gradient may just fit float16 in one of the two; the scale of the other is then halved
        one_skipped = self._alone > (MAX_LONE_SKIPS if self._dtype == "float16" else 0)
        facts = differences, one_skipped, finite, unequal
        by_rank, skips, is_finite, unequals = zip(*gather_objects(self._comm, facts), strict=True)
        worst = {subject: largest(of_rank[subject] for of_rank in by_rank) for subject in SUBJECTS}
        return Comparison(worst, not any(unequals), any(skips), not any(is_finite))

    def evaluate(self, loader: Loader, step: int, outputs: Outputs) -> None:
        self._both[0].evaluate(loader, step, outputs)

    def describe(self) -> dict[str, Any]:
        return {**self._both[0].describe(), "verify": True}

    def finish(self) -> dict[str, Any]:
        return {**self._both[0].finish(), "largest_differences": _flat(self._largest)}

    def leave(self) -> None:
        for strategy in self._both:
            strategy.leave()

    def close(self) -> None:
        for strategy in self._both:
            strategy.close()


def _gradient(p: Parameter) -> np.ndarray:
    """Returns the summed gradient of p; NaN, which differs from any number, if there is none."""
    return to_host(summed_gradient(p)) if p.has_grad else np.full(p.shape, np.nan)


def _scale(path: str, buffers: Mapping[str, np.ndarray]) -> float:
    """Returns a buffer's largest value, to which a difference is relative; for a running mean, at
    least the standard deviation: a mean near 0 may consist of rounding errors."""
    mean, name, _ = path.rpartition("running_mean")
    deviation = scale_of(buffers.get(f"{mean}running_var", np.zeros(1))) ** 0.5 if name else 0.0
    return max(scale_of(buffers[path]), deviation)


def _flat(differences: dict[str, Difference]) -> dict[str, float]:
    names = Difference._fields
    return {
        f"{s}_{name}": x for s, d in differences.items() for name, x in zip(names, d, strict=True)
    }


def read_every(config: Config) -> int:
    """Returns 1: --verify reads the parameters after each step."""
    return 1


PARTS = RunParts(read_every=read_every)


SINGLE_RANK = SingleRank(single_rank, VerifiedStrategy)
