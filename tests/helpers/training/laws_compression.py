"""Compressed sums: what is sent and what is kept add up, and all ranks have the same bits."""

import numpy as np

from nnmpi.collectives.compressed import BLOCK, WIDTHS
from nnmpi.comm import Comm
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.compression.blocks import PACKINGS, start_mean, summed
from nnmpi.parallel.compression.exchange import Exchange

RATIOS = {"bfloat16": 2.0**-8, "int8": 1 / 254}
"""The most that a number is rounded by, over the largest of its block."""


def means_in_blocks_are_rounded_twice(comm: Comm) -> None:
    for form, n in ((form, n) for form in PACKINGS for n in (1, 700, 3 * BLOCK, 5000)):
        rng = np.random.default_rng([comm.rank, n])
        row = (rng.standard_normal(n) * 10.0 ** rng.integers(-3, 3, n)).astype(np.float32)
        rows, sent = gather_objects(comm, row), sum(comm.ledger.sent_bytes)
        row = row.copy()
        work = start_mean(row, comm, form)
        while not work.poll():
            pass
        sent = sum(comm.ledger.sent_bytes) - sent
        means = gather_objects(comm, row)
        assert all((mean == row).all() for mean in means)
        most = sum(np.abs(terms).max() for terms in [*rows, sum(rows)]) * RATIOS[form]
        assert np.abs(row - np.mean(rows, 0)).max() <= 1.01 * most / comm.size
        blocks = -(-n // BLOCK)
        whole = sum(gather_objects(comm, sent))
        assert whole == 2 * (comm.size - 1) * blocks * WIDTHS[form], (form, n)


def sums_in_blocks_keep_what_they_leave_out(comm: Comm) -> None:
    for form, packing in PACKINGS.items():
        row = np.random.default_rng(comm.rank).standard_normal(3000)
        before = np.sum(gather_objects(comm, row), 0)
        work = Exchange(summed(row, comm, packing, keeps=True))
        work.wait()
        after = np.sum(gather_objects(comm, row), 0)
        assert 0 < np.abs(after).max() < 0.1
        np.testing.assert_allclose(work.result + after, before, atol=1e-12, err_msg=form)
