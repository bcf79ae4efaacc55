"""Trainer: what users call to train a model, to evaluate and save it, and to change its layout."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from traceback import clear_frames
from typing import Any, Self, TypeVar, cast

import numpy as np

from nnmpi.autograd.torch_names import NAMES
from nnmpi.comm import Comm, OperatingSystem, OtherRankError, job
from nnmpi.data import Dataset
from nnmpi.io.checkpoints.snapshot import Snapshot, changed
from nnmpi.io.output import Event, Report
from nnmpi.metrics import Metric, Sums
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.nn.store import stores_of
from nnmpi.optim.schedule import LRSchedule
from nnmpi.options.config import Config
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.model.whole import load_state, whole_optimizer
from nnmpi.run import end, loop, rank_agreement, start
from nnmpi.run.run_state import RunState
from nnmpi.run.session import Session
from nnmpi.run.setup.optimizers import MakeOptimizer
from nnmpi.run.setup.setup import NO_METRICS, Setup, TrainerArguments
from nnmpi.run.start_events import start_event
from nnmpi.run.training import (
    NO_SESSION,
    Checkpoints,
    Sampler,
    Supervisor,
    Tracer,
    Training,
    arrange,
    replace_session,
    supervisor_of,
)

T = TypeVar("T")


def read(get: Callable[[Training], T], doc: str) -> T:
    """Makes a read-only property of Trainer that calls `get`, typed by its value."""
    return cast(T, property(get, doc=doc))


class Trainer:
    """A model in training on all ranks of `comm`; it lives until `close`, or the end of a `with`.

    `build` makes the model; `data` is a Dataset, (x, y) or (x, y, x_test, y_test), where x may be a
    tuple or a dict of arrays (see nnmpi.data.from_arrays). Without them, the config names both.
    `comm` is by default all ranks that mpirun has started.

    loss: of nnmpi.nn, or a function of scores and labels that returns the mean over the samples
    metrics: by name, functions of scores and labels, as NumPy arrays, that return a sum over the
        samples and its divisor; classification losses have the accuracy anyway
    callbacks: objects with any of on_log, on_step, on_evaluate, on_epoch, on_end (see
        nnmpi.run.callbacks)
    optimizer: a function of a list of (path, parameter) that returns their optimizer
    schedule: a function of the step that returns a factor of the learning rates
    resume: a directory of checkpoints: the run goes on from the newest, and writes its own there
        too, unless the config names another `checkpoint_dir`
    """

    setup: Setup
    run: RunState
    checkpoints: Checkpoints
    tracer: Tracer
    callbacks: list[object]
    hears: frozenset[str]
    sampler: Sampler | None
    session: Session = NO_SESSION
    supervisor: Supervisor
    graph: Graph | None = None

    dataset = read(lambda t: t.setup.dataset, "The data set: training samples and test samples.")
    standardiser = read(lambda t: t.setup.standardiser, "The object that standardises samples.")
    train = read(lambda t: t.setup.train, "The loader of the training samples.")
    test = read(lambda t: t.setup.test, "The loader of the test samples.")
    arrangement = read(lambda t: t.session.arrangement, "What each rank has and does.")
    part = read(lambda t: t.session.part, "The part of the model that this rank has.")
    model = read(lambda t: t.session.model, "All modules; some have no values here.")
    strategy = read(lambda t: t.session.strategy, "The way in which ranks train together.")
    optimizer = read(lambda t: t.session.optimizer, "The optimizer of this rank's share.")
    warning = read(lambda t: t.session.warning, "A warning about users' modules, or empty.")
    last_lr = read(lambda t: t.session.last_lr, "The first group's rate in the last step.")
    state = read(lambda t: t.run.state, "The number of steps and epochs made so far.")
    step = read(lambda t: t.run.state.step, "The number of steps made so far.")
    total_steps = read(lambda t: t.run.total_steps, "The number of steps that the run ends with.")
    stopping = read(lambda t: t.run.is_stopped, "True if all ranks have agreed to stop.")
    skipped = read(lambda t: t.run.skipped, "The number of steps that were not finite.")
    loaded = read(lambda t: t.run.loaded, "What was loaded from the file of --load.")
    resumed = read(lambda t: t.run.resumed, "The checkpoint that the run goes on from, if any.")
    is_first = read(lambda t: t.comm.rank == 0, "True on rank 0, which prints and saves.")
    fitted = read(
        lambda t: t.supervisor.fitted, "The layout, and why, if it is not the requested one."
    )
    is_spare = read(
        lambda t: t.supervisor.is_spare, "True on a rank that the layout has no place for."
    )

    def __init__(
        self,
        config: Config,
        build: Callable[[], Module] | None = None,
        data: Dataset | tuple[Any, ...] | None = None,
        comm: Comm | None = None,
        *,
        loss: Any = None,
        metrics: Mapping[str, Metric] = NO_METRICS,
        callbacks: Sequence[object] = (),
        optimizer: MakeOptimizer | None = None,
        schedule: LRSchedule | None = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> None:
        if resume is not None:
            config = NAMES.needed("Trainer.resume")(config, resume)
        self.given = TrainerArguments(
            build, data, loss, metrics, callbacks, optimizer, schedule, resume
        )
        self.config = self.requested = config
        began = OperatingSystem.clock()  # the start of MPI counts
        self.comm = job() if comm is None else comm
        self.began = began if comm is None else comm.system.clock()
        self.supervisor = supervisor_of(config, self.comm)
        self.supervisor.set_up(self)

    # ---- training

    def fit(self, report: Report | None = None, *, epochs: int | None = None) -> Event:
        """Trains, evaluates after each epoch, and saves; returns the last event. `report` gets all
        events of the run; by default the options say where they are written.

        `epochs` trains for that many more epochs, whatever the options say; the schedule of the
        learning rate then starts anew over these epochs. Counts of steps and epochs continue.
        """
        with ExitStack() as outputs:
            try:
                return self.supervisor.run(
                    self, lambda lost: self._go_on(outputs, report, epochs, lost)
                )
            except BaseException as error:
                end.fail(self, error)
                raise
            finally:
                self.run.end()

    def _go_on(
        self, outputs: ExitStack, report: Report | None, epochs: int | None, lost: list[Event]
    ) -> Event:
        """Trains from the start of the run, or from the point to which a Supervisor has set it.
        `lost` has an event for each loss of a rank that is still to be reported."""
        if not self.run.is_running:
            start.check_ready(self.run, self.session, epochs)
            self.comm.meet("fit" if epochs is None else f"fit(epochs={epochs})")
            self.session.reshard()
            self.run.begin(epochs)
            self.checkpoints.go_back(-1)  # this run has reported no checkpoint yet
        start.open_reports(self, lost, outputs, report)
        self.checkpoints.begin(self.comm)
        result = loop.train(self)
        self.checkpoints.close()
        return result

    def stop(self) -> None:
        """Stops the run on all ranks; any rank may call it.

        In a callback of step k training ends after step k; called elsewhere, after the current step
        or the next. Ranks that take steps at different times end when they hear of it."""
        self.run.stop_requested = True
        self._stop_alone()

    def suspend(self) -> None:
        """Stops the run with a checkpoint to resume, or as `stop` without `checkpoint_dir`."""
        if self.checkpoints.are_written:
            self.run.suspend_requested = True
            self._stop_alone()
        else:
            self.stop()

    def _stop_alone(self) -> None:
        """Stops the run after the current step if this is the only rank; several agree on it with a
        step, after callbacks, or after an epoch."""
        if self.comm.size == 1 and self.run.in_epoch and self.run.asks_to_stop:
            self.run.stop_here()

    def lr_factor(self, step: int) -> float:
        """Returns the factor by which the schedule multiplies the learning rates in a step."""
        return self.run.lr_factor(step)

    def describe(self) -> Event:
        """Returns the start event, with the model, data and layout of the run."""
        return start_event(self.session, self.run)

    # ---- between two steps, and after the last one

    def evaluate(self) -> Sums:
        """Returns the loss and metrics on the test split. Every rank calls it, after the same step
        or epoch.

        It leaves the model in evaluation mode; within an epoch it restores training mode.
        """
        self._meet("evaluate")
        return self.session.evaluate()

    def predict(self, x: Any) -> Any:
        """Returns the scores of any number of samples, whole and on every rank. Every rank calls
        it.

        x is an array, or a tuple or dict of arrays, like the training samples, and is standardised
        like them. For an iterator of such batches it returns an iterator of scores.
        """
        if isinstance(x, Iterator):
            return map(self.predict, x)
        self._meet("predict")
        return self.session.predict(x)

    def generate(
        self,
        tokens: Iterable[int],
        max_new_tokens: int = 100,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> np.ndarray:
        """Generates `max_new_tokens` tokens after `tokens` with the model in training, and returns
        them on every rank; for other arguments see `nnmpi.generate`. Every rank calls it, after the
        same step or epoch. Training is not affected."""
        generate = NAMES.needed("Trainer.generate")
        self._meet("generate")
        how = temperature, top_k, top_p, seed
        tokens_of_all: np.ndarray = generate(self.session, tokens, max_new_tokens, how)
        return tokens_of_all

    def save(self, path: str | None) -> None:
        """Writes the model to the file `path`. Every rank calls it, after the same step or epoch,
        and rank 0 writes; on other ranks `path` has no effect, and may be None.

        If rank 0 has all of the model, rank 0 may call it alone.
        """
        self._check_together("save", self.session.is_closed and self.comm.size > 1)
        if not self.session.first_has_all:
            self.comm.meet("save")
            all_or_none(self.comm, lambda: self.session.write(path))
        elif self.is_first:
            self.session.write(path)

    @contextmanager
    def gathered_parameters(self) -> Iterator[None]:
        """A context in which every rank has all values of its parameters, to read, write and run
        with.

        With ZeRO, ranks along dp have parts of the parameters between steps. Within the block each
        has all of them, in memory of its own, as in PyTorch's `FSDP.summon_full_params`. So every
        rank enters the block, leaves it before the next step, and writes the same values as the
        others. Without ZeRO the parameters are complete at all times, and the context does nothing.
        """
        with ExitStack() as stack:
            for store in stores_of(self.part.parameters):
                stack.enter_context(store.gathered())
            yield

    def optimizer_state_dict(self) -> dict[str, np.ndarray]:
        """Returns, on rank 0, the optimizer state of the whole model as a dict, with the keys that
        `Optimizer.named_state` uses; on other ranks an empty dict. Every rank calls it."""
        self._check_together("optimizer_state_dict")
        self.comm.meet("optimizer_state_dict")
        return dict(whole_optimizer(self.optimizer, self.model, self.comm))

    def load_optimizer_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads optimizer state that `optimizer_state_dict` has returned on rank 0. Every rank
        calls it with the whole `state`, and takes the part that belongs to its parameters."""
        load_state(self.optimizer, self.model, state, self.comm)

    def save_checkpoint(self, directory: str | os.PathLike[str]) -> str:
        """Writes a checkpoint, waits for it, and returns its path; every rank calls it."""
        save = NAMES.needed("Trainer.save_checkpoint")
        self._meet("save_checkpoint")
        path: str = save(self, directory)
        return path

    # ---- other layouts, and the end

    def snapshot(self) -> Snapshot:
        """Returns a copy of all data that this rank needs to continue from this step. Every rank
        calls it, after the same step or epoch. No message is sent."""
        self._check_together("snapshot", self.session.is_closed)
        return self.session.snapshot()

    def restore(self, snapshot: Snapshot, **changes: Any) -> None:
        """Continues from a snapshot, with ranks arranged by the options `changes`. Every rank calls
        it.

        All ranks give snapshots of one step, of this Trainer or of another one with the same model,
        data, seed and optimizer. The ranks' current model and state are freed first. With the same
        options and ranks, training continues with the same bits; in another layout it equals one
        rank within rounding. Another number of ranks can continue if together they have the
        snapshots of all old ranks, which `nnmpi.io.checkpoints.snapshot.joined` combines.
        Measurements of a layout start again, and so do attributes of modules that are neither
        parameters nor buffers.
        """
        if not self.session.is_closed:
            self._check_together("restore")
        self.comm.meet("restore")
        ranks = self.comm.size
        config = all_or_none(self.comm, lambda: changed(self.config, changes, snapshot, ranks))
        rank_agreement.check_snapshot(
            self.comm, config, snapshot.state, snapshot.known(config, ranks)
        )
        with self.supervisor.restoring(self, snapshot):
            self.session.end()
            replace_session(self)
            arrange(self, config, self.comm, snapshot)
            self.requested = config
            self.run.go_on_from(snapshot)
            self.checkpoints.go_back(snapshot.state.step)

    def rearrange(self, **changes: Any) -> None:
        """Continues training from this step in another layout: `changes` are options of the layout
        with new values, such as tp=2. Every rank calls it, after the same step or epoch.

        If that layout is impossible, the ranks keep their old one.
        """
        snapshot = self.snapshot()
        try:
            self.restore(snapshot, **changes)
        except (ValueError, OtherRankError) as error:
            if self.session.is_closed:
                clear_frames(error.__traceback__)  # they keep what of the new session was made
                with self.supervisor.restoring(self, snapshot):
                    replace_session(self)
                    arrange(self, self.config, self.comm, snapshot)
            raise

    def close(self) -> None:
        """Frees resources that ranks share; every rank calls it. The end of a `with` block calls
        it, and so does `fit` if it fails on all ranks before its last step."""
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:  # close is collective, and other ranks may have had no exception
            self.close()

    def _meet(self, call: str) -> None:
        """Waits for all ranks; raises ValueError unless each can make `call` now."""
        self._check_together(call, self.session.is_closed and self.comm.size > 1)
        self.comm.meet(call)

    def _check_together(self, call: str, is_over: bool = False) -> None:
        """Raises ValueError if ranks cannot make `call` together: the Trainer is closed
        (`is_over`), or they are within an epoch with steps at different times."""
        together = self.arrangement.steps_together  # raises NoModelError after a failed restore
        if is_over:
            raise ValueError(
                f"this Trainer is closed, by close() or because its run failed: call {call} earlier"
            )
        if self.run.in_epoch and not together:
            raise ValueError(f"ranks make their steps at different times: call {call} in on_epoch")
