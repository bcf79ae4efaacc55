"""The parts of a parameter server that need no run: clocks, results, running statistics."""

import numpy as np

from nnmpi import nn
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.server.client import average_buffers
from nnmpi.parallel.server.exchange import Totals
from nnmpi.parallel.server.server import ClockTable
from nnmpi.parallel.server.strategy import EpochProgress
from nnmpi.parallel.step.executor import StepResult, StepState


def push(table: ClockTable, *workers: int) -> dict[int, bool]:
    """Which workers get a reply after these have pushed, and whether they are to push again."""
    for w in workers:
        table.pushed(w, samples=1, divisor=2, loss=0.5, stop=False)
        table.applied([w], True)
    return dict(table.released())


def begun(workers: int, bound: float, pushes: int) -> ClockTable:
    table = ClockTable(workers, bound)
    table.begin(0, pushes)
    for w in range(workers):
        table.started(w)
    assert push(table) == dict.fromkeys(range(workers), True)
    return table


def test_a_worker_that_is_too_far_ahead_waits() -> None:
    table = begun(2, 1, 100)
    assert push(table, 0) == {0: True}
    assert push(table, 0) == {}
    assert push(table, 1) == {0: True, 1: True}
    assert table.staleness == [{0: 2}, {2: 1}]


def test_as_many_pushes_as_workers_count_as_a_step_whichever_make_them() -> None:
    table, steps = begun(2, 10, 7), []
    for w in (0, 0, 0, 1, 0, 0, 1):
        push(table, w)
        steps.append(table.step)
    assert steps == [0, 0, 1, 1, 2, 2, 3]
    table.begin(4, 3)
    for w in (1, 1, 1):
        push(table, w)
    assert table.step == 5


def test_clocks_run_on_from_epoch_to_epoch() -> None:
    table = begun(2, 1, 4)
    assert push(table, 0) == {0: True}
    assert push(table, 0) == {}
    table.begin(2, 4)
    for w in range(2):
        table.started(w)
    assert push(table) == {1: True}
    assert push(table, 1) == {0: True, 1: True}


def test_an_epoch_ends_when_all_its_pushes_are_made() -> None:
    table = begun(2, 10, 5)
    assert [push(table, 0) for _ in range(4)] == [{0: True}] * 3 + [{0: False}]
    table.ended(0, False)
    assert push(table, 1) == {1: False}
    assert not table.is_over
    table.ended(1, True)
    assert table.is_over
    assert table.stop
    assert table.totals == Totals(5, 5, 10, 2.5, 0)


def test_no_worker_waits_for_one_that_has_ended_the_epoch() -> None:
    table = begun(3, 1, 100)
    assert push(table, 0) == {0: True}
    assert push(table, 0, 1) == {1: True}
    table.ended(2, False)
    assert push(table) == {0: True}


def test_a_loss_that_is_not_finite_ends_the_epoch() -> None:
    table = begun(2, 10, 100)
    table.pushed(0, samples=0, divisor=0, loss=np.nan, stop=False)
    assert push(table) == {0: False}
    assert push(table, 1) == {1: False}


def test_a_worker_that_wants_to_stop_ends_the_epoch() -> None:
    table = begun(2, 10, 100)
    table.pushed(0, samples=0, divisor=0, loss=0, stop=True)
    assert push(table) == {0: False}
    assert table.stop


def test_skipped_updates_are_counted_and_empty_pushes_are_not() -> None:
    table = begun(2, 10, 100)
    for updated in (True, False, None):
        table.pushed(0, samples=1, divisor=2, loss=0.5, stop=False)
        table.applied([0], updated)
    assert (table.totals.skipped, table.version) == (1, 1)


def test_the_results_of_an_epoch_add_up_to_the_totals() -> None:
    progress = EpochProgress(StepState(10, 2, 0), 5, workers=2)
    first = list(progress.results(Totals(3, 30, 15.0, 2.0, 0)))
    assert first == [StepResult(StepState(11, 2, 1), 30, 15.0, 2.0, False, True)]
    steps = list(progress.results(Totals(9, 70, 35.0, 5.5, 3), ended=True, stop=True))
    assert sum(s.samples for s in steps) == 40
    assert sum(s.divisor for s in steps) == 20
    assert sum(s.loss for s in steps) == 3.5
    assert sum(not s.updated for s in steps) == 3
    assert [s.state for s in steps] == [(11, 2, 1), (11, 2, 1), (15, 3, 0)]
    assert [s.request for s in steps] == [False, False, True]


def test_an_epoch_that_began_in_its_middle_ends_with_its_last_batch() -> None:
    progress = EpochProgress(StepState(13, 2, 3), 5, workers=2)
    (step,) = progress.results(Totals(4, 8, 8.0, 1.0, 0), ended=True)
    assert step.state == (15, 3, 0)


def test_running_statistics_become_their_means_over_the_ranks() -> None:
    def rank(comm: Comm) -> dict[str, np.ndarray]:
        model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(3))
        model[1].running_mean[...] = [comm.rank, 2, 3 * comm.rank]
        model[0].num_batches_tracked += comm.rank
        average_buffers(comm, model)
        return model.state_dict()

    for r, state in enumerate(threads.run(3, rank)):
        np.testing.assert_allclose(state["1.running_mean"], [1, 2, 3])
        np.testing.assert_array_equal(state["0.running_var"], [1, 1])
        assert state["0.num_batches_tracked"] == r
