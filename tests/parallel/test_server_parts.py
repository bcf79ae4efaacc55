"""The parts of a parameter server that need no run: its book, its sums, its statistics."""

import numpy as np

from nnmpi import nn
from nnmpi.comm import Comm
from nnmpi.comm.transport import threads
from nnmpi.parallel.server.clocks import Book
from nnmpi.parallel.server.exchange import Ask
from nnmpi.parallel.server.topology import Totals, average_buffers, told


def go(book: Book, *workers: int) -> dict[int, bool]:
    """Who hears what after these have pushed."""
    for w in workers:
        book.pushed(w, Ask(1, samples=1, loss=0.5))
        book.moved([w], True)
    return {w: bool(answer.go) for w, answer in book.answers()}


def begun(workers: int, bound: float, budget: int) -> Book:
    book = Book(workers, bound)
    book.begin(budget)
    for w in range(workers):
        book.started(w)
    assert go(book) == dict.fromkeys(range(workers), True)
    return book


def test_a_book_holds_up_who_is_too_far_ahead() -> None:
    book = begun(2, 1, 100)
    assert go(book, 0) == {0: True}
    assert go(book, 0) == {}
    assert go(book, 1) == {0: True, 1: True}
    assert book.staleness == [{0: 2}, {2: 1}]


def test_a_step_is_counted_by_the_pushes_of_all_whoever_makes_them() -> None:
    book, steps = begun(2, 10, 7), []
    for w in (0, 0, 0, 1, 0, 0, 1):
        go(book, w)
        steps.append(book.step)
    assert steps == [0, 0, 1, 1, 2, 2, 3]
    book.begin(3)
    for w in (1, 1, 1):
        go(book, w)
    assert book.step == 4  # in all epochs


def test_a_book_ends_an_epoch_when_all_its_pushes_are_made() -> None:
    book = begun(2, 10, 5)
    assert [go(book, 0) for _ in range(4)] == [{0: True}] * 3 + [{0: False}]
    book.left(0, False)
    assert go(book, 1) == {1: False}
    assert not book.is_over
    book.left(1, True)
    assert book.is_over
    assert book.stop
    assert book.totals == Totals(5, 5, 2.5, 0)


def test_nobody_waits_for_a_worker_that_is_done() -> None:
    book = begun(3, 1, 100)
    assert go(book, 0) == {0: True}
    assert go(book, 0, 1) == {1: True}
    book.left(2, False)
    assert go(book) == {0: True}


def test_a_loss_that_is_no_number_ends_the_epoch() -> None:
    book = begun(2, 10, 100)
    book.pushed(0, Ask(1, loss=np.nan))
    assert go(book) == {0: False}
    assert go(book, 1) == {1: False}


def test_who_adds_up_what_it_is_told_has_the_totals() -> None:
    seen, now = Totals(3, 30, 2.0, 1), Totals(9, 70, 5.5, 4)
    steps = list(told(seen, now, 7, True))
    assert sum(s.samples for s in steps) == 40
    assert sum(s.loss for s in steps) == 3.5
    assert sum(not s.updated for s in steps) == 3
    assert [s.step for s in steps[:-1]] == [6, 6]
    assert (steps[-1].step, steps[-1].stop) == (7, True)
    (step,) = told(now, now, 7)
    assert step.updated


def test_running_statistics_become_their_mean_over_the_ranks() -> None:
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
