"""The loss scale of float16, on ranks that are threads."""

import pytest
from helpers.laws import Law, of
from helpers.training import laws_loss_scale
from helpers.training.pipelined import run

from nnmpi.comm import comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.optim import SGD, Adam, Optimizer, RMSprop, loss_scale
from nnmpi.optim.loss_scale import GROWTH_INTERVAL, LossScale


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 4)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("law", of(laws_loss_scale).values())
def test_law(law: Law, p: int) -> None:
    threads.run(p, law)


def test_gradients_that_float16_does_not_have_train_only_with_the_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert laws_loss_scale.small_gradients_survive(comm_self()) > 0.5
    monkeypatch.setattr(LossScale, "of", lambda dtype: LossScale())
    assert laws_loss_scale.small_gradients_survive(comm_self()) < 0.25  # a few round up


@pytest.mark.parametrize("rule", [SGD, Adam, RMSprop])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_update_that_takes_float32_alone_moves_masters_to_the_same_bits(
    dtype: str, rule: type[Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"dtype": dtype, "optimizer": rule.__name__.lower(), "clip_norm": 0.5}
    wanted = run(comm_self(), **given).done["parameters_sha256"]
    monkeypatch.setattr(rule, "takes_mixed", False)
    assert run(comm_self(), **given).done["parameters_sha256"] == wanted


def test_the_scale_is_that_of_pytorch_s_grad_scaler() -> None:
    assert GROWTH_INTERVAL == 2000
    assert LossScale.of("float16") == (2.0**16, 0, True)
    assert LossScale.of("bfloat16") == LossScale.of("bfloat16").after(False) == (1.0, 0, False)
    assert LossScale(8.0, 3, True).after(False) == (4.0, 0, True)
    assert LossScale(2.0**-24, 0, True).after(False).scale == 2.0**-24
    scale, found = LossScale(8.0, 0, True), list[tuple[float, int]]()
    for _ in range(9):  # it grows after 4 good steps in a row here
        scale = scale.after(True)
        found.append(scale[:2])
    assert found == [(8, 1), (8, 2), (8, 3), (16, 0), (16, 1), (16, 2), (16, 3), (32, 0), (32, 1)]
