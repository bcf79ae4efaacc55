"""Runs a compiled step of a user's loop (`nnmpi.compile`) on a GPU as CUDA graphs.

capture   the step runs as written on a stream that records its kernels instead of running them
replay    one copy brings arguments from the host and the keys of random numbers to the memory that
          the kernels read; then one launch runs the kernels up to the next step of an optimizer,
          which is called as it is

So a step with one optimizer is one graph, if nothing is computed after the optimizer's step. Arrays
of a graph lie in a pool of their own, so that they stay where they are. A step in which the host
reads values, copies arrays to the device or waits cannot be captured.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Any

from nnmpi.addons.compile.recorded_step import (
    Arguments,
    Gradients,
    RecordedStep,
    array_of_argument,
    set_gradients,
)
from nnmpi.addons.compile.root_calls import RootCalls
from nnmpi.addons.compile.step_code import StepCode
from nnmpi.addons.compile.step_replay import Memory, checks_on_host
from nnmpi.addons.cuda.capture import Capture, restored
from nnmpi.addons.cuda.staging import Staging
from nnmpi.arrays.backend import Array, Backend, is_array
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.arrays.meta.log import Call, call_log
from nnmpi.autograd import Tensor
from nnmpi.nn.graph import leaves
from nnmpi.nn.passes import current_pass, variables_set
from nnmpi.nn.seeding import seed_state
from nnmpi.optim.optimizer import instead_of_step


def captured(
    recorded: RecordedStep,
    on: Backend,
    function: Callable[..., Any],
    code: StepCode,
    given: tuple[Sequence[Any], dict[str, Any]],
    free: Collection[int],
) -> Memory:
    """Captures a recorded step as CUDA graphs. Raises NumbersReadError with the reason if a graph
    cannot contain it.

    recorded   the same step, recorded on arrays without data
    on         the device
    function   the step as written; `code` says what it uses
    given      the arguments (args, named) of a call, whose arrays give shapes and dtypes
    free       the places of those numbers among the arguments that are inputs
    """
    arrays, keys = _arrays_of(given), [*recorded.roots.keys]
    staging = Staging(on.xp, arrays, len(keys) + len(recorded.roots.draws))
    memory = dict(zip(map(id, arrays), staging.arguments, strict=True))
    arguments = Arguments(*given, free, lambda array: memory[id(array)].on_device)
    written = [argument.written for argument in staging.arguments]
    checks, check_labels = checks_on_host(recorded, written)
    segments = _Segments(on, _work(recorded, code))
    roots, gradients = RootCalls(code, staging.words), Gradients(code, segments.log)
    contexts: Sequence[tuple[Any, Any]] = (
        (current_pass, roots.outside()),
        (instead_of_step, gradients.update),
        (seed_state, seed_state.get()),
        # where calls are logged, losses leave the checks of labels to others
        (call_log, [] if check_labels else None),
    )
    with restored(code.all_modules, code.parameters), variables_set(*contexts):
        try:
            with segments:
                args, named = arguments.given
                result = function(*args, **named)
                gradients.note()
        except Exception as error:  # as written, and on arrays without data, it has run
            raise NumbersReadError(f"a CUDA graph cannot contain the step: {error}") from error
    return Memory(
        written,
        [(staging.on_host(key.words), key, m, earlier) for key, m, earlier in roots.keys],
        [*map(staging.on_host, roots.draws)],
        [*checks],
        [Call(staging.copy, ()), *segments.calls],
        _arrays_of(result),
        arguments.numbers,
    )


def _arrays_of(tree: Any) -> list[Array]:
    """Returns the arrays in nested arguments or results, also those of tensors."""
    return [array_of_argument(a) for a in leaves(tree) if isinstance(a, Tensor) or is_array(a)]


def _work(recorded: RecordedStep, code: StepCode) -> list[bool]:
    """Returns for the part of a step before each step of an optimizer, and for the part behind the
    last one, whether kernels run in it."""
    work = [False]
    for call in recorded.calls:
        if call.is_check:
            continue
        if getattr(call.function, "__self__", None) in code.optimizers:
            work.append(False)
        elif call.function is not set_gradients:
            work[-1] = True
    return work


class _Segments:
    """Captures the parts of a step between steps of optimizers, each as a graph.

    work    for each part, whether kernels run in it
    calls   the launches of graphs, and what the host does before and behind them
    """

    def __init__(self, on: Backend, work: Sequence[bool]) -> None:
        self._capture, self._work, self.calls = Capture(on), iter(work), list[Call]()
        self._stack, self._graphs = ExitStack(), list[Any]()

    def __enter__(self) -> None:
        self._stack.__enter__()
        self._begin()

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
        self._end()

    def _begin(self) -> None:
        if next(self._work, False):
            self._graphs = self._stack.enter_context(self._capture.graph())

    def _end(self) -> None:
        self._stack.close()
        self.calls += [Call(_launch, (graph, self._capture)) for graph in self._graphs]
        self._graphs = []

    def log(self, function: Callable[..., object], *args: Any, **options: Any) -> None:
        """Logs a call of the host: a step of an optimizer, or a note which gradients there are."""
        if function is not set_gradients:
            self._end()
        self.calls.append(Call(function, args, options))
        if function is not set_gradients:
            self._begin()


def _launch(graph: Any, memory: Capture) -> None:
    """Launches a graph, of whose arrays `memory` keeps the pool."""
    graph.launch()
