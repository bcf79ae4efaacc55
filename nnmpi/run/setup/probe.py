"""Probe: compares the outputs of a few samples as one batch and as two parts, before training.

Ranks and micro-batches cut a batch. The layers and losses of nnmpi allow that; modules and losses
of users may not. A model that would train differently if batches are cut is refused or, where that
may be intended, the user is warned:

    a buffer that `forward` changes     refused, unless it says how parts of a batch combine
    a loss that is no mean              refused
    a sample that depends on others     a warning that names the module
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.dtypes import types_of
from nnmpi.autograd import Tensor, as_tensor, no_grad
from nnmpi.comm import RankLost
from nnmpi.data import Batch, Inputs, Loader
from nnmpi.data.inputs import each
from nnmpi.nn import Module
from nnmpi.nn.graph import Edge, leaves
from nnmpi.nn.passes import UNTRACKED, Pass, ReplayStats
from nnmpi.nn.registries import buffers_of
from nnmpi.nn.tracing import unchanged
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.mesh import BATCH
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.step.objective import SumOfMean
from nnmpi.parallel.step.ports import Task
from nnmpi.parallel.step.stage import forward

SAMPLES = 16


class BufferChangeError(ValueError):
    """Refuses a `forward` that changes a buffer without a rule to combine changes."""


class ModuleOutput(NamedTuple):
    """The output of one call of a user's module, or of a pipeline stage, when samples are passed
    through the model: `name` says which module it is, and `arrays` are what the call returned."""

    name: str
    arrays: list[np.ndarray]


def warning(
    part: ModelPart, task: Task, arrangement: Arrangement, train: Loader, layout: Layout
) -> str:
    """Returns the warning of `probe` on the first rank that has one, or ""; raises ValueError on
    all ranks if the model cannot be trained with this arrangement. Every rank calls it."""
    is_own = isinstance(task.objective.loss, SumOfMean) or any(own_modules(task.model))
    if not (is_own and (_cuts(arrangement) or arrangement.recomputes)):  # the same on all ranks
        return ""
    rows, fields = np.arange(min(SAMPLES, len(train.split.y))), part.fields._replace(x=True, y=True)
    message = all_or_none(
        layout.all, lambda: probe(part, task, arrangement, train.gather(rows, fields))
    )
    of_all = gather_objects(layout.all, message)
    layout.axis["tp"].free_sums()  # shared memory for a few samples; steps need other sizes
    return next(filter(None, of_all), "")


def _cuts(a: Arrangement) -> bool:
    """True if a batch is cut in this arrangement, among ranks or into micro-batches."""
    return _runs_on_parts(a) or a.config.micro_batches > 1


def _runs_on_parts(a: Arrangement) -> bool:
    """True if ranks run parts of micro-batches, or the strategy cuts batches itself."""
    return a.mesh.count(*BATCH) > 1 or a.strategy.micro_batches is not None


def own_modules(model: Module) -> Iterator[tuple[str, Module]]:
    """Yields (path, module) for modules whose class is not nnmpi's, and for modules with hooks."""
    for path, m in model.named_modules():
        if m._hooks or type(m).__module__.partition(".")[0] != "nnmpi":
            yield path, m


def probe(part: ModelPart, task: Task, arrangement: Arrangement, batch: Batch) -> str:
    """Runs the stages of this rank on a few samples, as one batch and as two parts; returns a
    warning if the outputs differ, or "". Raises ValueError if the model cannot be trained with this
    arrangement. Ranks along tp call it together. Afterwards the model is as before."""
    n, message = len(batch.y), ""
    for number, stage in part.stages.items() if n > 1 else ():
        edges = part.boundaries[number - 1] if number else ()
        try:
            passes = _passes(part, stage, task, arrangement, _inputs(batch.x, edges, n), n)
            message = message or (
                _difference(passes, f"stage {number}") if _cuts(arrangement) else ""
            )
        except (BufferChangeError, RankLost):
            raise
        except Exception:
            if not edges:
                raise
            continue  # a module may refuse random activations: that is no fault of the user
        if number == len(part.boundaries) and _cuts(arrangement):
            _check_loss(task.objective.loss, passes[-1][0][-1].arrays[0], batch.y)
    return message


def _passes(
    part: ModelPart,
    stage: Module,
    task: Task,
    arrangement: Arrangement,
    inputs: Callable[[int, int], Inputs],
    n: int,
) -> list[list[list[ModuleOutput]]]:
    """Runs a stage on n samples, in evaluation mode and in training mode; `inputs(lo, hi)` are
    those of samples lo to hi - 1. Returns for each mode the outputs of users' modules and of the
    stage for all samples, for those of the first part (`first_part`), and for the others."""
    twice, all_passes = arrangement.recomputes or _runs_on_parts(arrangement), []
    for training in (False, True):
        with no_grad(), unchanged(part.model), np.errstate(all="ignore"):
            part.model.train(training)
            outputs, stats = _record_outputs(part.model), ReplayStats(UNTRACKED)
            buffers = [array.copy() for _, array in _uncombined_buffers(part.model)]
            passes = []
            for lo, hi in ((0, n), (0, first_part(n)), (first_part(n), n)):
                outputs.clear()
                x = each(partial(as_tensor, on=task.on), inputs(lo, hi))
                y = forward(stage, x, Pass(0, np.arange(lo, hi), stats))
                passes.append([*outputs, ModuleOutput("", _arrays(y))])
                if twice and hi - lo == n:
                    _check_buffers(part.model, buffers)
                stats.replay()
            all_passes.append(passes)
    return all_passes


def first_part(n: int) -> int:
    """Returns how many of n samples are in the first of the two parts: not half, since unequal
    parts reveal a loss that gives parts wrong weights."""
    return max(n // 4, 1)


def _inputs(x: Inputs, edges: Sequence[Edge], n: int) -> Callable[[int, int], Inputs]:
    """Returns a function (lo, hi) of a stage's inputs: samples of a batch or, if `edges` are given,
    random activations such as the previous stage sends. 16 bits become float32, because parameters
    still have that type."""
    if not edges:
        return lambda lo, hi: each(lambda array: _widened(array[lo:hi]), x)
    rng = np.random.default_rng(0)
    made = [rng.standard_normal(e.shape(n)) * (e.dtype[0] in "fb") for e in edges]

    def rows(edge: Edge, array: np.ndarray, lo: int, hi: int) -> np.ndarray:
        ends = (slice(a.size * lo, a.size * hi) if a.of_samples else slice(None) for a in edge.axes)
        return _widened(array[(*ends,)].astype(edge.dtype))

    def some(lo: int, hi: int) -> Inputs:
        inputs = tuple(rows(e, array, lo, hi) for e, array in zip(edges, made, strict=True))
        return inputs if len(inputs) > 1 else inputs[0]

    return some


def _widened(array: np.ndarray) -> np.ndarray:
    types = types_of(array.dtype)
    return array.astype(types.sums) if types.is_mixed else array


def _record_outputs(model: Module) -> list[ModuleOutput]:
    """Records outputs of users' modules by hooks; returns the list of them."""
    outputs: list[ModuleOutput] = []

    def note(name: str, module: Module, args: Any, result: Any) -> None:
        outputs.append(ModuleOutput(name, _arrays(result)))

    for path, m in [*own_modules(model)]:
        m.register_forward_hook(partial(note, f"{path or 'the model'} ({type(m).__name__})"))
    return outputs


def _arrays(result: Any) -> list[np.ndarray]:
    return [backend.to_host(t.array) for t in leaves(result) if isinstance(t, Tensor)]


def _uncombined_buffers(model: Module) -> list[tuple[str, np.ndarray]]:
    """Returns (name, values) of users' buffers without a rule to combine changes."""
    return [
        (f"{path}.{name}" if path else name, backend.to_host(t._array))
        for path, m in own_modules(model)
        for _, name, t in buffers_of([m])
        if name not in m._combine
    ]


def _check_buffers(model: Module, old_values: Sequence[np.ndarray]) -> None:
    """Raises BufferChangeError if `forward` has changed a buffer of a user's module that has no
    rule for combining the changes of parts of a batch."""
    for (name, value), old in zip(_uncombined_buffers(model), old_values, strict=True):
        if not np.array_equal(value, old, equal_nan=value.dtype.kind == "f"):
            raise BufferChangeError(
                f"{name}: `forward` changes this buffer, and a batch is cut or computed twice: say "
                "how parts of a batch change it, register_buffer(..., combine='mean') or 'sum'"
            )


def _difference(modes: Sequence[Sequence[Sequence[ModuleOutput]]], stage: str) -> str:
    """Returns a warning that names the first user's module whose output for a whole batch differs
    from that for two parts; "" if the stage's output does not differ. `modes` is from `_passes`."""
    for passes in modes:
        rows = [row for row in zip(*passes, strict=False) if len({x.name for x in row}) == 1]
        differing = [row[0].name or stage for row in rows if not _equal(*row)]
        if not _equal(*(outputs[-1] for outputs in passes)):
            return (
                f"{[*differing, stage][0]}: the output for a sample depends on the other samples "
                "of its batch, or on numbers drawn in it, so training depends on how ranks and "
                "micro-batches cut a batch; see what differs with --verify"
            )
    return ""


def _equal(full: ModuleOutput, *parts: ModuleOutput) -> bool:
    return all(
        _agree(array, others)
        for array, *others in zip(full.arrays, *(p.arrays for p in parts), strict=False)
    )


def _agree(full: np.ndarray, parts: Sequence[np.ndarray]) -> bool:
    """True if the output for a whole batch agrees with those for its parts, up to rounding. Arrays
    without a row per sample are not compared."""
    if not full.ndim or any(part.shape[:1] == full.shape[:1] for part in parts):
        return True
    joined = np.concatenate(parts)
    if joined.shape != full.shape:
        return False
    a, b = joined.astype(float), full.astype(float)
    bound = 0.1 if full.dtype.itemsize == 2 else 1e-3  # of float16 and bfloat16, and of float32
    scale = np.abs(b[np.isfinite(b)]).max(initial=0)
    return bool(np.allclose(a, b, rtol=0, atol=bound * scale, equal_nan=True))


def _check_loss(loss: Any, scores: np.ndarray, y: np.ndarray) -> None:
    """Raises ValueError if the user's loss of a batch is not the mean, weighted by samples, of the
    losses of its two parts."""
    if not isinstance(loss, SumOfMean):
        return
    cut = first_part(len(y))
    with no_grad():
        full, *sums = (
            loss(Tensor(scores[part]), y[part]).item()
            for part in (slice(None), slice(cut), slice(cut, None))
        )
    scale = max(map(abs, (full, *sums))) + 1e-4 * len(y) * float(np.abs(scores).max(initial=0))
    if abs(full - sum(sums)) > 1e-3 * scale:
        raise ValueError(
            f"the loss of {len(y)} samples is {full / len(y):.4g}, and the mean of the losses of "
            f"its parts {sum(sums) / len(y):.4g}: return the mean over the samples, so that it "
            "does not depend on how ranks and micro-batches cut a batch (divide a sum by "
            "len(labels))"
        )
