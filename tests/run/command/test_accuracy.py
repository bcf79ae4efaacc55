"""Test accuracy of small models on real data, with three seeds each.

A seed chooses weights, batch order and dropout. Digits and MNIST are trained by the command, in
processes of one BLAS thread, which is faster on a busy machine and changes only the last bits.
"""

import json
import os
from io import StringIO
from typing import Any

import numpy as np
import pytest
from helpers.programs import python

from nnmpi import Config, Trainer
from nnmpi import data as datasets
from nnmpi.data import Dataset, from_arrays
from nnmpi.io.output import Report

SEEDS = (0, 1, 2)


def command(*arguments: str) -> dict[str, Any]:
    """The last line of a run."""
    run = python("-m", "nnmpi.train", "--json", *arguments)
    assert (run.status, run.err) == (0, "")
    result: dict[str, Any] = json.loads(run.out.splitlines()[-1])
    return result


def iris(data: Dataset, seed: int) -> dict[str, Any]:
    """With default options."""
    config = Config(model="iris-mlp", seed=seed)
    return Trainer(config, data=data).fit(Report(stdout=StringIO()))


@pytest.mark.parametrize("seed", SEEDS)
def test_iris_accuracy(seed: int) -> None:
    """96% is one error in 30: one flower is always misclassified."""
    assert iris(datasets.load("iris"), seed)["accuracy"] >= 0.96


@pytest.mark.long
def test_iris_accuracy_over_held_out_fifths() -> None:
    """Some have five of the ambiguous flowers, others none: the mean is 96%."""
    whole = [np.concatenate(parts) for parts in zip(*datasets.load("iris")[1:3], strict=True)]
    accuracies = [iris(from_arrays(*whole, seed=held_out), 0)["accuracy"] for held_out in range(15)]
    assert sum(accuracies) / 15 >= 0.95, accuracies


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.long) for s in (1, 2))])
def test_digits_accuracy_with_default_options(seed: int) -> None:
    result = command("--seed", str(seed), "--quiet")
    assert (result["event"], result["epochs"]) == ("done", 14)
    assert result["accuracy"] >= 0.98


@pytest.mark.parametrize("seed", SEEDS)
def test_mnist_accuracy(seed: int) -> None:
    """Trained on 8,000 of the 10,000 test images, tested on the other 2,000."""
    folder = os.environ.get("NNMPI_MNIST")
    if not folder:
        pytest.skip("set NNMPI_MNIST to a directory with the two t10k files of MNIST")
    files = ("--data", "mnist", "--data-dir", folder)
    result = command("--model", "mnist-cnn", *files, "--seed", str(seed), "--quiet")
    assert result["event"] == "done"
    assert result["accuracy"] >= 0.985
