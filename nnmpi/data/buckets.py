"""Batches of samples of similar length: the steps of a recurrent layer are full, and few.

lengths of the samples, sorted    2 2 3 | 3 4 | 5 5 6 | 7 7 9
batches, in the order drawn       5 5 6,  2 2 3,  7 7 9,  3 4      the smaller one is the last
"""

from collections.abc import Iterable

import numpy as np

from nnmpi.arrays import keyed
from nnmpi.data.inputs import Inputs, described, is_index


def lengths_of(x: Inputs, name: str) -> np.ndarray:
    """The lengths of samples, (N,): the input of that name, which the model takes too."""
    found = x.get("lengths") if isinstance(x, dict) else None
    if found is None or found.ndim != 1 or not is_index(found):
        what = described(x) if found is None else f"{found.dtype} of shape {found.shape} as lengths"
        raise ValueError(
            f"--bucket-by-length sorts samples by their input named lengths, and data {name} has "
            f"{what}: give x as a dict with lengths, (N,) integers"
        )
    return found


def by_length(
    order: np.ndarray, lengths: np.ndarray, batch_size: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """The rows of each batch: samples in this order, those of one length as they come in it.

    The order of batches is drawn, and which lengths the smaller one has.
    """
    rows = order[np.argsort(lengths[order], kind="stable")]
    whole, rest = divmod(len(rows), batch_size)
    place = int(keyed.permutation(keyed.key(seed, "smaller batch", epoch), whole + 1)[0])
    sizes = [batch_size] * whole
    sizes.insert(place, rest)
    batches = np.split(rows, np.cumsum(sizes)[:-1])
    last = [batches.pop(place)]
    drawn = keyed.permutation(keyed.key(seed, "batches", epoch), whole)
    return [batches[i] for i in drawn] + last * (rest > 0)


def padding(lengths: np.ndarray, batches: Iterable[np.ndarray]) -> float:
    """The share of padding in batches that are as long as their longest sample."""
    found = [(lengths[rows].max() * len(rows), lengths[rows].sum()) for rows in batches]
    positions, tokens = np.sum(found, axis=0)
    return float(1 - tokens / max(positions, 1))
