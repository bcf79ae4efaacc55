"""Losses as modules: on devices, in parts, and what is refused; tests/outside has their values."""

from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device, waits
from helpers.ops.oracle import needs_torch, same_as_pytorch

import nnmpi
from nnmpi import nn
from nnmpi.arrays import backend
from nnmpi.nn.losses import ClassLoss
from nnmpi.run.setup.objectives import criterion, described

WEIGHT = np.array([0.5, 2.0, 0.25, 1.5])
RNG = np.random.default_rng(0)
SCORES, IMAGES = RNG.standard_normal((6, 4)), RNG.standard_normal((2, 4, 3, 2))
LABELS, PIXELS = np.array([2, 0, -100, 3, 1, 0]), RNG.integers(0, 4, (2, 3, 2))
NUMBERS, PARTS = RNG.standard_normal((6, 4)), RNG.uniform(0.05, 0.95, (6, 4))
CLASSES = {"weight": WEIGHT, "ignore_index": 1}

CASES: dict[str, tuple[str, dict[str, Any], Any, Any]] = {
    "plain": ("CrossEntropyLoss", {}, SCORES, LABELS % 4),
    "ignored": ("CrossEntropyLoss", {}, SCORES, LABELS),
    "all": ("CrossEntropyLoss", {**CLASSES, "label_smoothing": 0.1}, IMAGES, PIXELS),
    "nll": ("NLLLoss", {}, SCORES, LABELS % 4),
    "nll of pixels": ("NLLLoss", CLASSES, IMAGES, PIXELS),
    "squares": ("MSELoss", {}, SCORES, NUMBERS),
    "absolute": ("L1Loss", {}, SCORES, NUMBERS),
    "smooth": ("SmoothL1Loss", {}, SCORES, NUMBERS),
    "not smooth": ("SmoothL1Loss", {"beta": 0}, SCORES, NUMBERS),
    "kl": ("KLDivLoss", {}, SCORES, PARTS),
    "bce": ("BCELoss", {}, PARTS, PARTS[::-1]),
    "logits": ("BCEWithLogitsLoss", {}, 1000 * SCORES, np.round(PARTS)),
    "weighted logits": ("BCEWithLogitsLoss", {"pos_weight": WEIGHT}, SCORES, PARTS),
    "twice": ("BCEWithLogitsLoss", {"pos_weight": 3 * WEIGHT, "weight": WEIGHT}, SCORES, PARTS),
}
REDUCTIONS = ("mean", "sum", "none")


def result(loss: Any, x: Any, target: Any, dtype: str = "float64", on: Any = backend.CPU):
    """The value, and the gradient of a weighted sum of it."""
    t = nnmpi.tensor(x, dtype, requires_grad=True, on=on)
    y = loss(t, target)
    y.backward(on.asarray(seed(y.shape).astype(dtype)))
    return y.array, t.grad_array


def seed(shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(1.0 + np.arange(np.prod(shape)).reshape(shape))


@needs_device
@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_device_gives_the_same_without_waits(case: Any) -> None:
    name, options, x, target = case
    for reduction in REDUCTIONS:
        loss = getattr(nn, name)(**options, reduction=reduction)
        there = DEVICE.asarray(target)
        with waits(0):
            device = result(loss, x, there, on=DEVICE)
        for got, wanted in zip(device, result(loss, x, target), strict=True):
            assert type(got) is DEVICE.xp.ndarray
            np.testing.assert_allclose(got.get(), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_float32_and_float16_stay_what_they_are(case: Any) -> None:
    name, options, x, target = case
    for reduction in REDUCTIONS:
        loss = getattr(nn, name)(**options, reduction=reduction)
        exact = result(loss, x, target)
        for dtype, bound in (("float32", 1e-5), ("float16", 1e-2)):
            if abs(x).max() > 100:  # float16 cannot hold the losses
                continue
            for got, wanted in zip(result(loss, x, target, dtype), exact, strict=True):
                assert got.dtype == dtype
                np.testing.assert_allclose(got, wanted, atol=bound * abs(wanted).max())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_mean_is_the_sum_divided_by_the_divisor(case: Any) -> None:
    name, options, x, target = case
    mean, total = (getattr(nn, name)(**options, reduction=r) for r in ("mean", "sum"))
    parts = (slice(0, len(x) // 2), slice(len(x) // 2, None))
    whole = sum(mean.divisor(target[part]) for part in parts)
    assert whole == pytest.approx(mean.divisor(target.tolist()))
    sums = sum(total(nnmpi.tensor(x[part]), target[part]).item() for part in parts)
    assert mean(nnmpi.tensor(x), target).item() == pytest.approx(sums / whole, rel=1e-12)


def test_a_divergence_is_divided_by_the_samples() -> None:
    loss, total = (nn.KLDivLoss(reduction=r) for r in ("batchmean", "sum"))
    assert loss.divisor(PARTS) == 6
    assert loss(SCORES, PARTS).item() == pytest.approx(total(SCORES, PARTS).item() / 6)
    assert described(criterion(loss)) != described(criterion(nn.KLDivLoss()))


@needs_torch
@pytest.mark.filterwarnings("ignore")  # of the reduction "mean"
@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("reduction", [*REDUCTIONS, "batchmean"])
def test_a_divergence_without_axes_is_that_of_one_sample(reduction: str, log_target: bool) -> None:
    options = {"reduction": reduction, "log_target": log_target}
    x, y = np.array(-0.5), np.array(0.3)
    same_as_pytorch(lambda n, x, y: n.nn.KLDivLoss(**options)(x, y), x, y)
    loss = nn.KLDivLoss(**options)
    assert loss.divisor(y) == loss.divisor(0.3) == 1


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("options", [{}, {"weight": WEIGHT}, {"label_smoothing": 0.1}], ids=str)
def test_ignored_labels_count_for_nothing(options: Any, reduction: str) -> None:
    """Whatever their scores are; PyTorch's mean of ignored labels alone is NaN, ours is 0."""
    kinds: tuple[type[ClassLoss], ...] = (nn.CrossEntropyLoss, nn.NLLLoss)
    for kind in kinds[: 1 if "label_smoothing" in options else 2]:
        loss, x = kind(**options, reduction=reduction), SCORES.copy()
        x[0, 1], x[3] = -np.inf, np.nan
        with np.errstate(invalid="ignore"):
            value, gradient = result(loss, x, np.array([-100, 1, 2, -100, 0, 3]))
        wanted, expected = result(loss, SCORES[[1, 2, 4, 5]], np.array([1, 2, 0, 3]))
        if reduction != "none":
            np.testing.assert_allclose(value, wanted, rtol=1e-12)
            np.testing.assert_allclose(gradient[[1, 2, 4, 5]], expected, rtol=1e-12)
        assert not gradient[0].any()
        value, gradient = result(loss, SCORES, np.full(6, -100))
        assert not value.any()
        assert not gradient.any()
        assert loss.divisor(np.full(6, -100)) == 0


def test_evaluation_leaves_ignored_labels_out() -> None:
    scores = np.eye(3)
    assert nn.CrossEntropyLoss().evaluate(scores, [0, -100, 1])[1:] == (1, 2)
    assert nn.CrossEntropyLoss(ignore_index=0).evaluate(scores, [0, 1, 2])[1:] == (2, 2)
    images = np.stack([np.eye(3), 1 - np.eye(3)])
    assert nn.CrossEntropyLoss().evaluate(images, [[0, 1, 2], [1, 2, 2]])[1:] == (4, 6)


@needs_torch
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weight", [None, [0.5, 2.0, 1.0]])
@pytest.mark.parametrize("axes", [(), (4,)])
def test_cross_entropy_of_probabilities(
    reduction: str, smoothing: float, weight: Any, axes: tuple[int, ...]
) -> None:
    rng, options = np.random.default_rng(0), {"reduction": reduction, "label_smoothing": smoothing}
    x, p = rng.standard_normal((5, 3, *axes)), rng.dirichlet((1, 1, 1), (5, *axes))
    p = np.moveaxis(p, -1, 1).copy()

    def program(n: Any, x: Any, p: Any) -> Any:
        of_classes = weight and n.tensor(weight, dtype=n.float64)
        return n.nn.CrossEntropyLoss(of_classes, **options)(x, p.detach())

    same_as_pytorch(program, x, p, rtol=1e-10)
    assert nn.CrossEntropyLoss().divisor(p) == 5 * int(np.prod(axes))
