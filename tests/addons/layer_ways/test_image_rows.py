"""Images cut by rows over ranks that are threads, and on paper."""

import itertools

import numpy as np
import pytest
from helpers.traced import traced

from nnmpi import nn
from nnmpi.addons.layer_ways.image_rows.cut import HALO, HALO_GRADIENT
from nnmpi.addons.layer_ways.image_rows.halo import Halo
from nnmpi.arrays.kernels.window import Window
from nnmpi.comm import Comm, thread_ranks
from nnmpi.nn.models import cifar_cnn, mnist_cnn
from nnmpi.parallel.tensor.constraints import Constraints
from nnmpi.parallel.tensor.shard import shard
from nnmpi.parallel.tensor.sharding import Sharding
from nnmpi.parallel.tensor.ways import (
    GATHER_INPUT_GRADIENT,
    GATHER_OUTPUT,
    SUM_OUTPUT,
    Message,
)

WINDOWS = [Window(k, s, p, p) for k in (1, 2, 3, 7) for s in (1, 2, 3) for p in (0, 1, 3)]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_rows_that_are_needed_come_from_those_who_have_them(size: int) -> None:
    """Each row inside the image once, by one message at most from each rank, and back."""
    for window, height in itertools.product(WINDOWS, (5, 6, 13)):
        made = window.outputs(height)
        if made < size:
            continue
        halos = [Halo.of(window, height, size, rank) for rank in range(size)]
        for r, one in enumerate(halos):
            outputs = range(made * r // size, made * (r + 1) // size)
            read = {
                i * window.stride - window.before + k for i in outputs for k in range(window[0])
            }
            assert (min(read), max(read) + 1) == one.needed
            inside = range(max(one.needed[0], 0), min(one.needed[1], height))
            assert [row for rows in one.receives for row in range(*rows)] == [*inside]
            for q, rows in enumerate(one.receives):
                assert [*range(*rows)] == [*range(*halos[q].sends[r])]


def test_a_3x3_convolution_sends_one_row_to_each_neighbour() -> None:
    """And the other way round what it has of the gradients of these rows."""

    def sent(comm: Comm) -> list[list[int]]:
        halo, found = Halo.of(Window(3, 1, 1, 1), 9, comm.size, comm.rank), []
        rows, needed = np.ones((4, 3, 5, 2)), np.zeros((4, halo.height, 5, 2))
        for move in (
            lambda: halo.fetch(rows, needed, comm),
            lambda: halo.add_back(needed, comm),
        ):
            before = [*comm.ledger.sent_messages], [*comm.ledger.sent_bytes]
            move()
            now = comm.ledger.sent_messages, comm.ledger.sent_bytes
            found += [np.subtract(*pair).tolist() for pair in zip(now, before, strict=True)]
        return found

    row = 4 * 2 * 5 * 8
    end, middle = [[0, 1, 0], [0, row, 0]], [[1, 0, 1], [row, 0, row]]
    assert thread_ranks.run(3, sent) == [end * 2, middle * 2, end * 2]


ROWS = Constraints(frozenset({"rows"}), {}, 64)


def sent_by(model: nn.Module, *sample: int, ranks: int = 2) -> dict[str, list[Message]]:
    layers = shard(traced(model, *sample), ranks, constraints=ROWS).layers
    return {layer.path: [one.message for one in layer.sends] for layer in layers if layer.bounds}


def test_what_layers_send_follows_from_what_is_whole() -> None:
    """A gather behind the pooling that runs with the last convolution; a sum of means."""
    both = [HALO, HALO_GRADIENT]
    sent = {"0": [HALO], "2": [], "3": both, "5": [], "6": [*both, GATHER_OUTPUT]}
    assert sent_by(cifar_cnn(), 3, 32, 32) == sent
    layers = shard(traced(cifar_cnn(), 3, 32, 32), 2, constraints=ROWS).layers
    (gather,) = (one for layer in layers for one in layer.sends if one.message is GATHER_OUTPUT)
    assert (gather.elements, gather.bounds) == (4096, (0, 2, 4))
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, 2), nn.MaxPool2d(3, 1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)),
    )
    assert sent_by(model, 1, 13, 13) == {
        "0": [HALO, GATHER_OUTPUT],
        "2": [HALO, HALO_GRADIENT, GATHER_INPUT_GRADIENT],
        "3": [HALO, HALO_GRADIENT],
        "4": [SUM_OUTPUT],
    }


def test_images_of_fewer_rows_than_ranks_are_whole() -> None:
    found = sent_by(cifar_cnn(), 3, 32, 32, ranks=5)
    assert found == {"0": [HALO], "2": [], "3": [HALO, HALO_GRADIENT, GATHER_OUTPUT]}


CONV = nn.Conv2d(2, 2, 3)
REFLECTED = nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")
WIDE = nn.Conv2d(2, 4, 3, padding=1)


def by_rows(layers: tuple[nn.Module, ...], at: int, ranks: int) -> Sharding:
    """A layer of images of 6 x 10, of which each of so many ranks is to have rows."""
    graph = traced(nn.Sequential(*layers, nn.ReLU(), nn.Flatten()), 2, 6, 10)
    return shard(graph, ranks, constraints=Constraints(ways={str(at): "spatial"}))


@pytest.mark.parametrize(
    ("layers", "ranks", "words"),
    [
        ((CONV,), 5, r"layer 0 \(Conv2d\) makes images of 4x8, .* among 5 ranks"),
        ((CONV,), 7, r"layer 0 \(Conv2d\) takes images of 6x10, .* use --tp 6 or less"),
        ((REFLECTED,), 2, "0=spatial: the ways of 0 are copy, column, row, samples"),
        ((nn.GroupNorm(1, 2),), 2, "the ways of 0 are copy, channels, samples"),
        ((WIDE, nn.Flatten(), nn.Dropout(0.5)), 2, r"layer 2 \(Dropout\) takes no images"),
        ((WIDE, nn.ReLU(), nn.MaxPool2d(2)), 2, r"layer 2 \(MaxPool2d\) is fused with the layer b"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_its_name(
    layers: tuple[nn.Module, ...], ranks: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        by_rows(layers, len(layers) - 1, ranks)


def test_a_layer_that_makes_a_row_for_each_rank_is_cut() -> None:
    assert by_rows((CONV,), 0, 4).layers[0].gathers


def test_an_axis_of_rows_that_is_too_short_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"rows among 40 ranks; the longest such axis has 32, in 0 \(Conv2d\)"
    ):
        shard(traced(cifar_cnn(), 3, 32, 32), 40, constraints=ROWS)
    with pytest.raises(ValueError, match="no layer has an axis rows"):
        shard(traced(nn.Sequential(nn.Linear(4, 4)), 4), 2, constraints=ROWS)


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2, ceil_mode=True),
        nn.AvgPool2d(3, 1, 1, count_include_pad=False),
        nn.AdaptiveAvgPool2d(2),
        nn.Upsample(scale_factor=2),
    ],
)
def test_layers_that_cannot_take_rows_get_whole_images(pool: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), pool, nn.Flatten())
    assert sent_by(model, 1, 12, 12) == {"0": [HALO, GATHER_OUTPUT]}


def test_a_way_that_a_convolution_lacks_is_refused_with_those_that_it_has() -> None:
    words = "layout 0=spiral: the ways of 0 are copy, column, row, spatial, samples"
    with pytest.raises(ValueError, match=words):
        shard(traced(mnist_cnn(), 1, 28, 28), 2, constraints=Constraints(ways={"0": "spiral"}))


def test_the_way_for_rows_is_preferred_to_the_one_for_any_axis() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Dropout(0.5), nn.Conv2d(4, 4, 3), nn.Flatten())
    first, masked, _ = shard(traced(model, 2, 8, 8), 2, constraints=ROWS).layers
    assert (first.how, masked.how) == ("spatial", "spatial")
