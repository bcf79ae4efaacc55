"""Images cut by rows over ranks that are threads."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.training import laws_spatial

from nnmpi import backend, nn
from nnmpi.autograd import Tensor
from nnmpi.comm import Comm, thread_ranks
from nnmpi.kernels.bands import Bands
from nnmpi.kernels.window import Window
from nnmpi.nn.fusion import groups
from nnmpi.parallel.standalone import halo, spatial
from nnmpi.parallel.standalone.halo import Halo, ImageRows


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    "law",
    [laws_spatial.convolutions_equal_one_rank, laws_spatial.fused_convolutions_equal_one_rank],
)
def test_bands_change_nothing(
    law: Callable[..., None], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache so small that images are cut into bands of the least height."""
    monkeypatch.setattr(backend, "CPU", backend.CPU._replace(chunk_bytes=1))
    thread_ranks.run(size, law, 100 * size + 1)


@pytest.mark.parametrize(("rows", "number"), [(33, 2), (34, 17), (38, 19)])
def test_large_samples_are_cut_into_bands(rows: int, number: int) -> None:
    """Two samples: as they are, or in bands of 4 rows of output if each has 8 of them or more."""
    bands = Bands.of(Window(3), False, 2, rows, row_bytes=10, budget=35)
    assert bands.number == number


WINDOWS = [Window(k, s, p, p) for k in (1, 2, 3, 7) for s in (1, 2, 3) for p in (0, 1, 3)]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_rows_that_are_needed_come_from_those_who_have_them(size: int) -> None:
    """Each row inside the image once, by one message at most from each rank, and back."""
    for window, height in itertools.product(WINDOWS, (5, 6, 13)):
        if window.outputs(height) < size:
            continue
        halos = []
        for rank in range(size):
            comm: Any = SimpleNamespace(rank=rank, size=size)
            rows = ImageRows(comm, (1, 1, height, 1), halo.row_bounds(height, size))
            halos.append(Halo.of("layer", rows, window))
        for r, one in enumerate(halos):
            start, stop = one.own
            first, last = one.inside
            moved = [row for piece in one.receives for row in range(*piece[1:])]
            kept = [row for row in range(start, stop) if first <= row < last]
            assert sorted(moved + kept) == list(range(first, last))
            outputs = range(*halo.row_bounds(window.outputs(height), size)[r : r + 2])
            read = {
                i * window.stride - window.before + k for i in outputs for k in range(window[0])
            }
            assert (min(read), max(read) + 1) == one.needed
            for q, *span in one.receives:
                assert [p for p in halos[q].sends if p.rank == r] == [(r, *span)]
        assert sum(len(h.sends) for h in halos) == sum(len(h.receives) for h in halos)


def test_a_3x3_convolution_sends_one_row_to_each_neighbour() -> None:
    def sent(comm: Comm) -> tuple[list[int], list[int]]:
        layer = spatial.SpatialConv2d(2, 2, 3, padding=1, comm=comm).to("float64")
        x = Tensor(np.ones((4, 2, 3, 5)), requires_grad=True)
        layer(x)
        shapes = np.array([comm.ledger.sent_messages, comm.ledger.sent_bytes])
        ImageRows.of("only the shapes", x, comm)
        both = np.array([comm.ledger.sent_messages, comm.ledger.sent_bytes])
        messages, size = (2 * shapes - both).tolist()
        return messages, size

    row = 4 * 2 * 5 * 8
    ends = thread_ranks.run(3, sent)
    assert ends == [([0, 1, 0], [0, row, 0]), ([1, 0, 1], [row, 0, row]), ([0, 1, 0], [0, row, 0])]


def refused(size: int, f: Callable[[Comm], object], match: str) -> None:
    def rank(comm: Comm) -> None:
        with pytest.raises(ValueError, match=match):
            f(comm)

    thread_ranks.run(size, rank)


def test_fewer_rows_than_ranks_are_refused() -> None:
    x = Tensor(np.ones((1, 2, 4, 6)))
    refused(5, lambda comm: halo.scatter_rows(x, comm), "height 4 .* over 5 ranks: .* 4 or fewer")
    pool = "SpatialMaxPool2d: the output of height 2 cannot be cut by rows over 3 ranks"
    refused(3, lambda c: spatial.SpatialMaxPool2d(2, comm=c)(halo.scatter_rows(x, c)), pool)


def test_rows_that_do_not_belong_together_are_refused() -> None:
    def other_samples(comm: Comm) -> None:
        x = Tensor(np.ones((1 + comm.rank, 2, 4, 6)))
        spatial.SpatialConv2d(2, 2, 3, comm=comm)(x)

    shapes = r"SpatialConv2d: .* \(1, 2, 4, 6\), \(2, 2, 4, 6\); give all of them the same samples"
    refused(2, other_samples, shapes)
    vector = Tensor(np.ones((2, 3)))
    refused(2, lambda c: halo.gather_rows(vector, c), r"gather_rows: input of shape \(2, 3\)")


def test_a_window_larger_than_the_image_is_refused_as_on_one_rank() -> None:
    x = Tensor(np.ones((1, 2, 4, 6), "float32"))
    conv = "images of 4x6 with padding 0 are too small for a 5x5 kernel"
    refused(2, lambda c: spatial.SpatialConv2d(2, 2, 5, comm=c)(halo.scatter_rows(x, c)), conv)
    row = Tensor(np.ones((4, 6)))
    refused(2, lambda c: halo.scatter_rows(row, c), r"input of shape \(4, 6\); it takes images")
    pool = r"input of shape \(1, 2, 4, 6\) for a 7x7 window"
    refused(2, lambda c: spatial.SpatialAvgPool2d(7, comm=c)(halo.scatter_rows(x, c)), pool)


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (nn.Linear(2, 2), "Linear is no nn.Sequential"),
        (
            nn.Sequential(nn.Sequential(nn.ReLU(), nn.Dropout(0.5))),
            r"layer 0\.1 is Dropout\(p=0.5\)",
        ),
        (nn.Sequential(nn.Conv2d(1, 1, 1), nn.LayerNorm(4)), r"layer 1 is LayerNorm"),
        (nn.Sequential(nn.MaxPool2d(2, ceil_mode=True)), r"layer 0 is MaxPool2d.*ceil_mode=False"),
        (
            nn.Sequential(nn.ReLU(), nn.AvgPool2d(3, 1, 1, count_include_pad=False)),
            r"layer 1 is AvgPool2d.*count_include_pad=True",
        ),
        (
            nn.Sequential(nn.MaxPool2d(2, return_indices=True)),
            r"layer 0 is MaxPool2d.*return_indices=False",
        ),
        (
            nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")),
            r"layer 0 is Conv2d.*padding_mode='zeros' only",
        ),
        (nn.Sequential(nn.PReLU()), r"layer 0 is PReLU"),
        (nn.Sequential(nn.Upsample(scale_factor=2)), r"layer 0 is Upsample"),
        (nn.Sequential(nn.AdaptiveAvgPool2d(1)), r"layer 0 is AdaptiveAvgPool2d"),
    ],
)
def test_models_that_cannot_take_rows_are_refused_unchanged(model: Any, match: str) -> None:
    before = repr(model)
    with pytest.raises(ValueError, match=match):
        spatial.parallelize(model, thread_ranks.comm_self())
    assert repr(model) == before


def test_a_spatial_convolution_pads_with_zeros() -> None:
    with pytest.raises(ValueError, match=r"SpatialConv2d: .* padding_mode='zeros' only"):
        spatial.SpatialConv2d(1, 1, 3, padding_mode="circular", comm=thread_ranks.comm_self())


def test_parallelize_keeps_names_parameters_and_modes() -> None:
    model = nn.Sequential(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), nn.Flatten()).eval()
    weight, names = model[0][0].weight, list(model.state_dict())
    assert spatial.parallelize(model, thread_ranks.comm_self()) is model
    assert list(model.state_dict()) == names
    assert model[0][0].weight is weight
    assert weight.place.path == "0.0.weight"
    assert [type(m).__name__ for m in model.modules()] == [
        *("Sequential", "Sequential", "SpatialConv2d", "SpatialBatchNorm2d", "SpatialFlatten")
    ]
    assert not any(m.training for m in model.modules())


def test_a_convolution_with_relu_and_pool_stays_one_op() -> None:
    layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 2, 1))
    model = spatial.parallelize(layers, thread_ranks.comm_self())
    assert [len(group) for group in groups(list(model))] == [3, 1]


def test_parallelize_leaves_what_is_behind_the_whole_image() -> None:
    comm = thread_ranks.comm_self()
    model = nn.Sequential(nn.ReLU(), spatial.SpatialMean(comm=comm), nn.Dropout(), nn.Linear(2, 3))
    spatial.parallelize(model, comm)
    assert [type(m) for m in model][2:] == [nn.Dropout, nn.Linear]
    x = np.random.default_rng(0).standard_normal((2, 2, 3, 5)).astype("float32")
    np.testing.assert_allclose(model[1](Tensor(x)).data, x.mean((2, 3)), rtol=1e-5)
