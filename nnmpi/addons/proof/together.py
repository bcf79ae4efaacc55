"""Proves what concerns all ranks together: each part of each gradient counts once in the norm, the
loss of each replica counts once, and each label has the same weight in the gradient."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nnmpi.addons.proof.actions import Actions
from nnmpi.addons.proof.layers import Share
from nnmpi.addons.proof.shares import Shares
from nnmpi.data import Split
from nnmpi.data.loader import Batch, BatchSplit, Loader, WantedFields
from nnmpi.data.standardise import Standardiser
from nnmpi.nn import CrossEntropyLoss
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.rank_names import ranks_text
from nnmpi.parallel.mesh import BATCH
from nnmpi.parallel.step.objective import Objective
from nnmpi.parallel.step.ports import LossSink
from nnmpi.schedules.lists.step_list import ScheduleError


def check_counts(a: Arrangement, shares: Shares, ranks: Sequence[Actions]) -> None:
    """Raises ScheduleError if a part of a gradient, or a loss, is counted twice, or never."""
    replicas = {axis: 0 for axis in a.mesh.axes if axis not in ("pp", "tp")}
    first = [of for of in ranks if all(of.at[axis] == 0 for axis in replicas)]
    for v in sorted(shares.users):
        if (v, "tp") not in shares.gradients:  # it is not trained
            continue
        counting = Counter(of.at["tp"] for of in first if of.counts.get(v))
        is_cut = shares.gradients[v, "tp"].share is Share.CUT
        parts = a.mesh.axes["tp"] if is_cut else 1
        if len(counting) != parts or {*counting.values()} != {1}:
            times = ", ".join(
                f"{n} times by rank {t} along tp" for t, n in sorted(counting.items())
            )
            raise ScheduleError(
                f"the norm: {shares.path(v)} is counted {times or 'by no rank'}; due is "
                f"{'each part' if is_cut else 'one copy'} once"
            )
    losing = sorted({of.at["tp"] for of in ranks if of.counts_loss})
    if len(losing) != 1:
        raise ScheduleError(
            f"the loss: ranks {', '.join(map(str, losing)) or 'none'} along tp count it, and all "
            "have the same one; due is one of them"
        )


def check_updates(a: Arrangement, shares: Shares, ranks: Sequence[Actions]) -> None:
    """Raises ScheduleError unless, of the ranks whose values one has after an update, exactly one
    updates each element."""
    replicas = [axis for axis in a.mesh.axes if axis not in ("pp", "tp")]
    for of in ranks:
        if any(of.at[axis] for axis in replicas):
            continue  # its part is like that of the first replica
        for bucket, group in of.values_from():
            for v in bucket.variables:
                slices = sorted(part for r in group for part in ranks[r].updates.get(v, ()))
                starts = [*(start for start, _ in slices), of.elements[v]]
                stops = [0, *(stop for _, stop in slices)]
                if starts != stops:
                    wrong = next(k for k, start in enumerate(starts) if start != stops[k])
                    times = "twice" if starts[wrong] < stops[wrong] else "by none of them"
                    raise ScheduleError(
                        f"the update: rank {of.rank} has what ranks {ranks_text(group)} update, "
                        f"but element {min(starts[wrong], stops[wrong])} of {shares.path(v)} is "
                        f"updated {times}; due is once"
                    )


IGNORED = -100


def check_weights(a: Arrangement) -> None:
    """Raises ScheduleError unless each label that is not ignored has the weight 1 / their number in
    the gradient: in a batch of sequences, of which some labels are ignored, as the loader cuts it
    for each rank, and as the loss is divided."""
    others = [axis for axis in a.mesh.axes if axis not in ("pp", "tp")]
    ranks = a.mesh.group(0, *others)
    positions = [a.own_positions(rank) for rank in ranks]
    length = max(FEW if columns is None else 1 + int(columns.max()) for columns in positions)
    parts = a.config.micro_batches * a.mesh.count(*BATCH)
    y = _labels(min(a.config.batch_size, 2 * parts + 1), length)  # more are cut in the same way
    total = np.zeros(y.shape)
    for rank, of_rank in zip(ranks, positions, strict=True):
        group = a.mesh.group(rank, *BATCH)
        cut = BatchSplit(a.config.micro_batches, len(group), group.index(rank))
        columns = np.arange(length) if of_rank is None else of_rank
        for batch, seed in _seeds(y, cut, WantedFields(positions=of_rank)):
            weights = np.where(batch.y != IGNORED, seed, 0.0)
            np.add.at(total, (batch.samples[:, None], columns[None, :]), weights)
    _compare(total, y)


FEW = 12
"""The length of sequences, if ranks have whole ones."""


def _labels(samples: int, length: int) -> np.ndarray:
    """Returns labels (samples, length), of which other numbers are ignored in each sample."""
    y = np.arange(samples * length).reshape(samples, length) % 5
    y[: samples // 2, length // 4 :] = y[1:2] = IGNORED
    return y


def _seeds(y: np.ndarray, cut: BatchSplit, fields: WantedFields) -> Iterator[tuple[Batch, float]]:
    """Yields a rank's micro-batches of a batch with these labels, and the gradient of each loss
    with which its backward pass starts."""
    loss = CrossEntropyLoss(reduction="sum")
    options: Any = {
        "standardiser": Standardiser(None, None),
        "shuffle": False,
        "divisor": loss.divisor,
    }
    loader = Loader(Split(np.zeros_like(y), y), len(y), **options)
    (load,) = loader.loads(0, cut, fields=fields)
    sink = LossSink(Objective(loss, {}))
    sink.begin(load)
    for micro, batch in enumerate(load.micro):
        (seed,) = sink.seeds(micro, [np.zeros((), np.float64)])
        yield batch, float(seed)


def _compare(total: np.ndarray, y: np.ndarray) -> None:
    count = (y != IGNORED).sum()
    wrong = ~np.isclose(total, np.where(y != IGNORED, 1 / count, 0))
    if wrong.any():
        sample, place = map(int, np.argwhere(wrong)[0])
        raise ScheduleError(
            f"position {place} of sample {sample} has the weight {total[sample, place]:.4g} in the "
            f"gradient; due is 1 / {count}, the mean over all labels that count in the batch"
        )
