"""ParameterServer: updates a slice of the parameters with the gradients that workers send (push).

One rule covers bsp, ssp and asp: a worker that has pushed gets a reply, and continues, as soon as
it is at most `bound` steps ahead of the slowest worker. In BSP the bound is 0: the gradients of a
step are summed for one update. ASP has no bound. In SSP and ASP each push is an update.

The learning rate follows the pushes of all workers: push i, by any worker, has the rate of step i
// workers. So a fast worker does not reach the end of a schedule while a slow one is at its start.

bound 1      worker 0   push 0 ─ push 1 ─ waits ───────── push 2
             worker 1   ................. ─── push 0 ────┘
"""

import math
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import cycle
from operator import add

import numpy as np

from nnmpi.addons.servers.exchange import Purpose, Reply, ReplyChannel, Totals, poll_until
from nnmpi.addons.servers.strategy import EpochProgress, ServerStrategy
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.data import Loader
from nnmpi.nn.utils import clip_factor
from nnmpi.parallel.arrangement.flat_buffer import STOPS
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.step.executor import StepResult, StepState
from nnmpi.parallel.step.objective import Outputs
from nnmpi.parallel.strategy import TrainSpec


class ClockTable:
    """Keeps count of the gradients that each worker has pushed, and decides which workers may
    continue and when an epoch ends; without messages and parameters.

    clocks[w]     pushes of worker w so far, in all epochs
    version       optimizer steps so far
    staleness[w]  maps s to the number of w's pushes with s optimizer steps between the pull of
                  parameters and the push of the gradient that was computed from them
    bound         the number of pushes that a worker may be ahead of the slowest one without waiting
    """

    def __init__(self, workers: int, bound: float) -> None:
        self.clocks, self._bound = [0] * workers, bound
        self.version, self._pulled = 0, [0] * workers
        self.staleness: list[Counter[int]] = [Counter() for _ in range(workers)]

    def begin(self, step: int, pushes: int) -> None:
        """Starts an epoch at step number `step`, in which all workers together may push `pushes`
        gradients. Each worker may push its first gradient without waiting for others."""
        workers = range(len(self.clocks))
        self._step, self._budget, self._granted = step, pushes, len(workers)
        self._pushed, self._skipped = [Totals() for _ in workers], 0
        self.stop = self._ending = False
        self._active = set(workers)
        self._waiting = dict[int, bool]()  # workers that wait for a reply: True if granted

    @property
    def totals(self) -> Totals:
        """Counts and losses of the epoch, in the order of workers, whoever pushed first."""
        return Totals(*map(sum, zip(*self._pushed, strict=True)))._replace(skipped=self._skipped)

    @property
    def step(self) -> int:
        """The step of the last push: N pushes of N workers are one."""
        return self._step + int(self.totals.pushes - 1) // len(self.clocks)

    @property
    def is_over(self) -> bool:
        """True if all workers have ended the epoch."""
        return not self._active

    def started(self, w: int) -> None:
        """Records that worker w is ready for the epoch, and waits until `released` has it."""
        self._waiting[w] = True

    def pushed(self, w: int, samples: float, divisor: float, loss: float, stop: bool) -> None:
        """Counts a gradient that worker w has pushed, with its request's numbers; w then waits."""
        self._pushed[w] = Totals(*map(add, self._pushed[w], (1, samples, divisor, loss, 0)))
        self.clocks[w] += 1
        self.stop = self.stop or stop
        self._ending = self._ending or self.stop or not math.isfinite(self.totals.loss)
        self._waiting[w] = False

    def applied(self, workers: Iterable[int], updated: bool | None) -> None:
        """Counts an update by these workers' last gradients: made or skipped, or None without
        samples."""
        for w in workers:
            self.staleness[w][self.version - self._pulled[w]] += 1
        self.version += updated is True
        self._skipped += updated is False

    def ended(self, w: int, stop: bool) -> None:
        """Records that worker w has ended the epoch: no other worker waits for it any more. `stop`
        is True if w wants to end the run."""
        self._active.discard(w)
        self.stop = self.stop or stop

    def released(self) -> Iterator[tuple[int, bool]]:
        """Yields (w, go) for each waiting worker w that is not too far ahead of the slowest; go is
        True if it is to push another gradient in this epoch."""
        slowest = min((self.clocks[w] for w in self._active), default=0)
        for w in [w for w in self._waiting if self.clocks[w] - slowest <= self._bound]:
            self._pulled[w] = self.version
            yield w, self._waiting.pop(w) or self._grant()

    def _grant(self) -> bool:
        """Returns True if a worker may push once more in this epoch, and counts that push; False if
        no push of the epoch is left, or the run is to end."""
        if self._ending or self._granted >= self._budget:
            return False
        self._granted += 1
        return True


class ParameterServer(ServerStrategy):
    """The strategy of a parameter server: it updates its slice, and answers workers until all have
    ended the epoch."""

    def __init__(self, layout: Layout, spec: TrainSpec) -> None:
        super().__init__(layout, spec)
        config = spec.arrangement.config
        store, workers = self._store, range(layout.workers)
        self._table = ClockTable(layout.workers, self._bound)
        self._staleness = self._table.staleness
        if self._next_steps:
            self._table.clocks = [state.step for state in self._next_steps]
        copies = not self._synchronous  # else no update comes before all replies were sent
        self._channels = [ReplyChannel(layout.all, w, store, store.own, copies) for w in workers]
        self._polled = cycle(self._channels)
        self._clip_norm = config.clip_norm

    def steps(self, loader: Loader, start: StepState) -> Generator[StepResult, None, None]:
        """Answers the requests of all workers in an epoch that begins at `start`; at its end,
        yields the results of their steps."""
        self._check_batches(loader)
        table, workers = self._table, self.layout.workers
        steps = min(len(loader) - start.batch, self._control.steps() - start.step)
        table.begin(start.step, workers * steps)
        for channel in self._channels:
            channel.listen()
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            while not table.is_over:
                poll_until(self.layout.all.system, self._serve)
        for channel in self._channels:  # replies to DONE, for which all workers wait
            channel.reply(Reply(False, table.stop, table.totals))
        for channel in self._channels:
            channel.flush()
        progress = EpochProgress(start, len(loader), workers)
        yield from progress.results(table.totals, ended=True, stop=table.stop)

    def _serve(self) -> bool:
        """Handles requests that have arrived, and replies to workers that may continue; returns
        True if any had arrived."""
        table = self._table
        next(self._polled).poll()  # one poll moves the messages of all channels
        arrived = [w for w, channel in enumerate(self._channels) if channel.arrived()]
        for w in arrived:
            self._handle(w)
        for w, go in table.released() if arrived else ():
            # the worker passes `stop` on to the other servers
            stop = table.stop or self._control.request() >= STOPS
            self._channels[w].reply(Reply(go, stop, table.totals))
            self._channels[w].listen()
        return bool(arrived)

    def _handle(self, w: int) -> None:
        request, table = self._channels[w].request, self._table
        if request.purpose == Purpose.START:
            table.started(w)
        elif request.purpose == Purpose.DONE:
            table.ended(w, request.stop > 0)
        else:
            table.pushed(w, request.samples, request.divisor, request.loss, request.stop > 0)
            if not self._synchronous:
                self._update([w])
            elif table.totals.pushes % len(self._channels) == 0:
                self._update(range(len(self._channels)))

    def _update(self, workers: Sequence[int]) -> None:
        """Updates by these workers' gradients, added in the order of ranks."""
        channels = [self._channels[w] for w in workers]
        requests, gradient = [channel.request for channel in channels], channels[0].gradient
        for channel in channels[1:]:
            gradient += channel.gradient
        squares = np.array([requests[0].squares])
        if self._synchronous:
            for channel in channels:
                channel.flush()  # does not wait: each worker has pushed since it got the last reply
            squares[0] = float(xp_of(gradient).dot(gradient, gradient))
            self.layout.server_group.all_reduce(squares, "doubling")
        updated = None
        if any(request.samples for request in requests):
            used = np.sum([channel.used for channel in channels], axis=0)
            loss = sum(request.loss for request in requests)
            updated = self._step(gradient, used, loss, float(squares[0]))
        self._table.applied(workers, updated)

    def _step(self, gradient: Array, used: Array, loss: float, squares: float) -> bool:
        """Makes an optimizer step on this server's slice; returns False if loss or gradient is not
        finite.

        used      for each parameter, above 0 if any of the workers has a gradient of it
        squares   the sum of squares of the gradient, over the slices of all servers
        """
        if not (math.isfinite(loss) and math.isfinite(squares)):
            return False
        if self._clip_norm is not None:
            gradient *= clip_factor(squares**0.5, self._clip_norm)
        for p, times in zip(self._store.parameters, used.tolist(), strict=True):
            p.has_grad = times > 0
        self._store.gradient = gradient
        self.optimizer.step(lr_factor=self._control.lr_factor(self._table.step))
        return True

    def evaluate(self, loader: Loader, step: int, outputs: Outputs) -> None:
        """Takes part in the sum of `outputs` without computing any: parameters outside the slice
        are outdated."""
        self._sum(outputs)
