"""Metrics that are arrays: they add up over batches and ranks, and are lists in events."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.runs import LAYOUTS, rows, trained
from helpers.training.laws_language import POSITIONS, VOCABULARY, windows

from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads


def confusion(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, int]:
    """The share of samples of each class that the model takes for each class."""
    matrix = np.zeros((3, 3))
    np.add.at(matrix, (labels, scores.argmax(1)), 1)
    return matrix, len(labels)


def recall(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each class; there is no sample of a fourth one."""
    of = np.bincount(labels, minlength=4)
    return np.bincount(labels[scores.argmax(1) == labels], minlength=4), of


METRICS = {"confusion": confusion, "recall": recall, "size": lambda s, y: (len(y), len(y))}

OF_METRICS: dict[str, tuple[int, dict[str, Any]]] = {
    **LAYOUTS,
    "a rank without samples": (8, {"batch_size": 5}),
    "servers": (3, {"sync": "bsp", "servers": 1}),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layout", OF_METRICS.values(), ids=OF_METRICS)
def test_every_layout_adds_up_arrays(layout: tuple[int, dict[str, Any]]) -> None:
    small_batch = {name: n for name, n in layout[1].items() if name == "batch_size"}
    alone, found = (trained(*one, metrics=METRICS)[0] for one in ((1, small_batch), layout))
    assert found["metrics"] == alone["metrics"]
    matrix = np.array(found["metrics"]["confusion"])
    assert matrix.shape == (3, 3)
    assert matrix.sum() == pytest.approx(1)
    assert np.trace(matrix) == pytest.approx(found["accuracy"])
    assert found["metrics"]["recall"][3] == 0
    assert found["metrics"]["size"] == 1


SHARED: tuple[dict[str, Any], ...] = (
    {"dp": 2, "cp": 2},
    {"tp": 2, "cp": 2},
    {"dp": 2, "pp": 2, "micro_batches": 2},
    {"dp": 2, "tp": 2},
)


@pytest.mark.parametrize("layout", SHARED, ids=str)
def test_each_sample_counts_once_and_each_token(layout: dict[str, Any]) -> None:
    """Of ranks that have parts of the same sequences one counts them."""
    few = windows(17)

    def rank(comm: Comm) -> None:
        build = partial(nn.GPT, 2, 2, 8, VOCABULARY, POSITIONS)
        config = Config(**layout, epochs=1, batch_size=4)
        with Trainer(config, build, few, comm) as trainer:
            found = trainer.evaluate()
            assert (found.samples, found.divisor) == (len(few.test.y), few.test.y.size)

    threads.run(4, rank)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_metric_has_one_shape(ranks: int) -> None:
    def by_largest(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, int]:
        return np.bincount(labels), len(labels)

    x, y = rows()
    data = x, y, np.repeat(x[:1], 4, axis=0), np.array([0, 1, 1, 2])
    with pytest.raises(ValueError, match=r"metric n returned sums of the shapes \(.,\) and \(.,\)"):
        trained(ranks, {"batch_size": 2}, data=data, metrics={"n": by_largest})
