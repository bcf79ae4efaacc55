"""Dropout depends on the seed, the step, the path and each sample's index in the whole data set."""

from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.device import DEVICE, needs_device, waits
from helpers.in_pass import in_pass

import nnmpi
from nnmpi import nn
from nnmpi.arrays import backend
from nnmpi.nn import functional as F
from nnmpi.nn.layers.basic import ChannelRange

SHAPE = (3, 4)  # of one sample


class Two(nn.Module):
    """Two Dropout layers on one input, seen apart."""

    def __init__(self, p: float = 0.5, seed: int = 0) -> None:
        self.seed = seed
        self.a, self.b = nn.Dropout(p), nn.Dropout(p)

    def forward(self, x: nnmpi.Tensor) -> tuple[nnmpi.Tensor, nnmpi.Tensor]:
        return self.a(x), self.b(x)


def ones(n: int, on: Any = backend.CPU) -> nnmpi.Tensor:
    return nnmpi.tensor(np.ones((n, *SHAPE), "float32"), on=on)


def drawn(model: nn.Module, samples: Any, step: int = 0) -> np.ndarray:
    """What the model makes of ones for these samples of the whole in this step: its masks."""
    with in_pass(step, samples):
        return np.stack([y.numpy() for y in model(ones(len(samples)))])


def test_a_mask_depends_on_seed_step_path_and_sample() -> None:
    a, b = drawn(Two(), [0, 1, 2])
    again = drawn(Two(), [0, 1, 2])
    np.testing.assert_array_equal(again, [a, b])
    others = [*drawn(Two(seed=1), [0, 1, 2]), *drawn(Two(), [0, 1, 2], 1), *drawn(Two(), [7, 8, 9])]
    masks = [m[i].tobytes() for m in (a, b, *others) for i in range(3)]
    assert len(set(masks)) == len(masks)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1], [2], [2, 0, 3], [5, 3, 2**40, 0], []])
def test_a_sample_keeps_its_mask_in_any_batch(order: list[int]) -> None:
    whole = {i: drawn(Two(), [i], step=4)[:, 0] for i in (0, 1, 2, 3, 5, 2**40)}
    masks = drawn(Two(), np.array(order, "int64"), step=4)
    assert masks.shape == (2, len(order), *SHAPE)
    for place, i in enumerate(order):
        np.testing.assert_array_equal(masks[:, place], whole[i])
    assert len({m.tobytes() for m in whole.values()}) == len(whole)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.25, 0.5, 0.9])
def test_rate_and_scale(p: float) -> None:
    x = nnmpi.tensor(np.full((500, 200), 3.0))
    y = nn.Dropout(p)(x).numpy()
    kept = y != 0
    n = kept.size
    assert abs(kept.mean() - (1 - p)) <= 5 * np.sqrt(p * (1 - p) / n)
    np.testing.assert_allclose(y[kept], 3 / (1 - p), rtol=1e-15)
    for axis in (0, 1):  # no row and no column is special
        rates = kept.mean(axis)
        assert np.abs(rates - (1 - p)).max() <= 6 * np.sqrt(p * (1 - p) * len(rates) / n)


def test_the_gradient_passes_where_the_number_did() -> None:
    x = nnmpi.tensor(np.full((4, 5), 2.0), requires_grad=True)
    y = nn.Dropout(0.5)(x)
    y.backward(np.full((4, 5), 7.0))
    np.testing.assert_array_equal(x.grad, y.numpy() / 2 * 7)
    assert 0 < np.count_nonzero(x.grad) < 20


def test_whole_channels_become_zero() -> None:
    """As the same samples do in any batch, and as a part of the channels does."""
    layer, x = nn.Dropout2d(0.4), np.full((50, 40, 3, 2), 3.0)
    with in_pass(2, np.arange(7, 57)):
        y = layer(nnmpi.tensor(x)).numpy()
        part = nn.Dropout2d(0.4)
        part.part = ChannelRange(10, 25, 40)
        np.testing.assert_array_equal(part(nnmpi.tensor(x[:, :15])).numpy(), y[:, 10:25])
    with in_pass(2, [30, 9]):
        np.testing.assert_array_equal(layer(nnmpi.tensor(x[:2])).numpy(), y[[23, 2]])
    kept = y[:, :, 0, 0] != 0
    assert abs(kept.mean() - 0.6) < 5 * np.sqrt(0.24 / kept.size)
    np.testing.assert_array_equal(y, np.broadcast_to(kept[:, :, None, None] * (3 / 0.6), y.shape))


def test_evaluation_is_the_identity() -> None:
    model, x = Two().eval(), ones(3)
    before = model.passes
    assert all(y is x for y in model(x))
    assert model.passes == before
    assert nn.Dropout(0.0)(x) is x


def test_successive_forwards_differ_and_are_reproducible() -> None:
    """Without a trainer a model counts its training passes; evaluation does not count."""
    first = Two()
    runs = [first(ones(4))[0].numpy() for _ in range(3)]
    assert len({r.tobytes() for r in runs}) == 3
    assert first.passes == 3
    second = Two()
    for i, run in enumerate(runs):
        np.testing.assert_array_equal(second(ones(4))[0].numpy(), run)
        np.testing.assert_array_equal(drawn(Two(), range(4), step=i)[0], run)
        second.eval()
        second(ones(4))
        second.train()


class Mixed(nn.Module):
    """A Dropout layer below modules that may be in another mode."""

    def __init__(self) -> None:
        self.body = nn.Sequential(nn.Tanh(), nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)))

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        y: nnmpi.Tensor = self.body(x)
        return y


def test_each_pass_of_a_dropout_layer_in_a_model_under_evaluation_has_a_new_mask() -> None:
    """Monte-Carlo dropout."""
    model, again = Mixed().eval(), Mixed().eval()
    for m in (model, again):
        m.body[1][0].train()
    runs = [model(ones(4)).numpy() for _ in range(5)]
    assert len({r.tobytes() for r in runs}) == 5
    assert model.passes == 5
    for run in runs:
        np.testing.assert_array_equal(again(ones(4)).numpy(), run)
    model.eval()
    before = model(ones(4)).numpy()
    np.testing.assert_array_equal(model(ones(4)).numpy(), before)
    assert model.passes == 5


def test_the_path_is_that_in_the_whole_model() -> None:
    inner = nn.Sequential(nn.Dropout(0.5))
    alone = inner(ones(4)).numpy()
    outer = nn.Sequential(nn.ReLU(), inner)
    within = outer(ones(4)).numpy()
    assert inner[0].path == "1.0"
    assert (alone != within).any()
    straight = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Dropout(0.5)))
    np.testing.assert_array_equal(straight(ones(4)).numpy(), within)


def test_a_batch_that_does_not_match_its_indices_is_refused() -> None:
    with in_pass(0, [0, 1]), refused("(4, 3, 4)", "batch of 2"):
        Two()(ones(4))


@needs_device
def test_other_backends_draw_the_same_mask_without_waiting() -> None:
    x = ones(6, DEVICE)
    with waits(0):
        a, b = Two()(x)
    here = [y.numpy() for y in Two()(ones(6))]
    np.testing.assert_array_equal([a.numpy(), b.numpy()], here)


def test_the_function_draws_a_new_mask_in_each_call() -> None:
    x = nnmpi.ones(200, requires_grad=True)
    with nnmpi.seeded(3):
        a, b = (F.dropout(x, 0.25) for _ in range(2))
    assert {*a.tolist()} == {0.0, nnmpi.tensor(1 / 0.75).item()}
    assert 0.6 < (a.numpy() > 0).mean() < 0.9
    assert (a.numpy() != b.numpy()).any()
    a.sum().backward()
    np.testing.assert_array_equal(np.asarray(x.grad), a.numpy())
    with nnmpi.seeded(3):
        np.testing.assert_array_equal(F.dropout(x, 0.25).numpy(), a.numpy())
    assert F.dropout(x, 0.25, training=False) is x


def test_the_function_is_refused_where_a_mask_would_depend_on_ranks() -> None:
    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            return F.dropout(x, 0.5)

    with in_pass(0, [0, 1]), refused("write self.drop = nn.Dropout(0.5)"):
        Model()(nnmpi.ones(2, 3))
