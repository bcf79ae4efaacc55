"""Images that are moved and mirrored: each by its number and the epoch, on any ranks."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.training.pipelined import CNN, equals, reference, run

from nnmpi.comm import Comm, thread_ranks
from nnmpi.data import Loader, Split, Standardiser, load
from nnmpi.data.augment import augmented
from nnmpi.data.loader import BatchSplit
from nnmpi.options.value_forms import Augment

X = np.random.default_rng(0).standard_normal((400, 2, 5, 4)).astype("float32")
SAMPLES = np.arange(400)
LAYOUTS: tuple[dict[str, Any], ...] = (
    {"dp": 3},
    {"dp": 2, "pp": 2},
    {"tp": 2},
    {"dp": 2, "zero": 2},
)


def test_each_image_is_a_window_of_itself_or_its_mirror() -> None:
    y, seen = augmented(X, Augment(1, True), 0, 3, SAMPLES), Counter[tuple[int, int, bool]]()
    around = np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1)))
    for i in SAMPLES:
        for d, r, m in ((d, r, m) for d in range(3) for r in range(3) for m in (False, True)):
            window = around[i, :, d : d + 5, r : r + 4]
            if np.array_equal(y[i], window[..., ::-1] if m else window):
                seen[d, r, m] += 1
    assert sum(seen.values()) == 400
    assert len(seen) == 18  # of 18 ways, which are as likely
    assert max(seen.values()) < 50


def test_an_image_depends_on_its_number_and_the_epoch_alone() -> None:
    how = Augment(2, True)
    whole = augmented(X, how, 7, 1, SAMPLES)
    some = np.array([9, 300, 2])
    np.testing.assert_array_equal(augmented(X[some], how, 7, 1, some), whole[some])
    for other in ((7, 2), (8, 1)):
        assert (augmented(X, how, *other, SAMPLES) != whole).any((1, 2, 3)).mean() > 0.9


@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_a_loader_gives_the_images_of_its_epoch(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standardised before they are moved, whether all at once or batch by batch."""
    monkeypatch.setattr("nnmpi.data.loader.SMALL", kept)
    split, how, rows = Split(X, SAMPLES % 3), Augment(1, True), np.array([7, 200, 3])
    of_split = Standardiser.of(split)
    loader = Loader(split, 8, standardiser=of_split, seed=5, augment=how)
    plain = of_split.apply(X[rows])
    np.testing.assert_array_equal(loader.gather(rows).x, plain)
    for epoch in (0, 3):
        wanted = augmented(plain, how, 5, epoch, rows)
        np.testing.assert_array_equal(loader.gather(rows, epoch=epoch).x, wanted)
        for one in loader.loads(epoch, BatchSplit(1, 1, 0)):
            wanted = augmented(of_split.apply(X[one.rows]), how, 5, epoch, one.rows)
            np.testing.assert_array_equal(one.micro[0].x, wanted)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_ranks_train_as_one_on_augmented_images(layout: dict[str, Any]) -> None:
    case = {**CNN, "augment": "crop:1+flip", "micro_batches": 2}
    ranks = layout.get("dp", 1) * layout.get("pp", 1) * layout.get("tp", 1)

    def trained(comm: Comm) -> None:
        equals(comm, run(comm, **case, **layout), reference(comm, **case))

    thread_ranks.run(ranks, trained)


def test_verify_compares_augmented_images() -> None:
    def relative(comm: Comm) -> list[float]:
        ran = run(comm, **CNN, augment="flip", dp=2, steps=3, verify=True)
        return [e["parameters_relative"] for e in ran.events if e["event"] == "verify"]

    found, _ = thread_ranks.run(2, relative)
    assert len(found) == 3
    assert max(found) < 1e-9


def test_samples_that_are_no_images_are_refused() -> None:
    iris = load("iris").train
    with refused("(120, 4)", "nnmpi.random"):
        Loader(iris, 8, standardiser=Standardiser.of(iris), augment=Augment(1))
    masks = Split(X, np.zeros((400, 5, 4), "int64"))
    with refused("labels (400, 5, 4)"):
        Loader(masks, 8, standardiser=Standardiser.of(masks), augment=Augment(1))
    images = Split(X, SAMPLES % 3)
    with refused("crop:4", "5 x 4 pixels", "fewer than 4"):
        Loader(images, 8, standardiser=Standardiser.of(images), augment=Augment(4))
