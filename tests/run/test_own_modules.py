"""Modules and losses of the user's own, where ranks and micro-batches cut a batch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import runs
from helpers.runs import rows

import nnmpi
from nnmpi import Tensor, Trainer, nn
from nnmpi.comm import Comm, OtherRankError, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event, NullReport
from nnmpi.nn import Module
from nnmpi.parallel.strategy import AgreedError

Options = dict[str, Any]

LAYOUTS: dict[str, tuple[int, Options]] = {
    "ring": (3, {"allreduce": "ring"}),
    "shared": (2, {"allreduce": "shared"}),
    "zero 3": (2, {"zero": 3}),
    "pipeline": (2, {"pp": 2, "cut": "2", "micro_batches": 2}),
    "recomputed": (4, {"dp": 2, "pp": 2, "cut": "2", "micro_batches": 3, "recompute": True}),
    "slices": (2, {"reproducible": True, "slices": 2}),
    "tp": (2, {"tp": 2}),
}


class Noise(Module):
    """Adds noise in training, drawn as nnmpi offers it."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        uniform = nnmpi.random(self, x.shape, name="uniform", like=x)
        return x + nnmpi.random(self, x.shape, normal=True, like=x) + uniform


class OwnNoise(Module):
    """Adds noise from a generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.rng.random(x.shape) if self.training else x


class Centred(Module):
    """Subtracts the mean of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(axis=0)


def written(own: "Scaled", x: Tensor) -> None:
    own.scale *= 0.9
    own.scale += 0.1 * np.abs(x.numpy()).mean(axis=0)


def assigned(own: "Scaled", x: Tensor) -> None:
    own.scale = 0.9 * own.scale + 0.1 * np.abs(x.numpy()).mean(axis=0)


def assigned_with_history(own: "Scaled", x: Tensor) -> None:
    own.scale = 0.9 * own.scale + 0.1 * x.abs().mean(0)


def written_by_methods(own: "Scaled", x: Tensor) -> None:
    own.scale.mul_(0.9).add_(x.detach().abs().mean(0), alpha=0.1)


def copied(own: "Scaled", x: Tensor) -> None:
    own.scale.copy_(0.9 * own.scale + 0.1 * x.detach().abs().mean(0))


UPDATES = [written, assigned, assigned_with_history, written_by_methods, copied]


SCALED = ("scale", "count", "offset", "unsaved")
"""The buffers of Scaled that are not None."""


class Scaled(Module):
    """Divides by a running mean of absolute values, which `update` changes, and counts samples."""

    def __init__(self, combine: Any = "mean", update: Any = written) -> None:
        self.register_buffer("scale", np.ones(6), combine=combine)
        self.register_buffer("count", np.zeros((), np.int64), combine=combine and "sum")
        self.register_buffer("offset", np.full(6, 0.5))  # never changed
        self.register_buffer("unsaved", np.full(6, 0.5), persistent=False)
        self.register_buffer("later", None)
        self._update = update

    scale: Any
    count: Any
    offset: Any

    def forward(self, x: Tensor) -> Tensor:
        y = (x - 0.5 * (self.offset + self.unsaved)) / self.scale.clone()  # which the tape keeps
        if self.training and len(x):
            self._update(self, x)
            self.count += len(x)
        return y


def with_own(own: Callable[[], Module]) -> Callable[[], Module]:
    """In a pipeline of two stages the module is in the first one, which computes twice."""
    return lambda: nn.Sequential(
        nn.Linear(6, 6), own(), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)
    )


def trainer_of(comm: Comm, build: Callable[[], Module], **options: Any) -> Trainer:
    loss = options.pop("loss", None)
    return runs.trainer_of(comm, {"batch_size": 26, "seed": 3, **options}, build, loss=loss)


def trained(
    ranks: int, build: Callable[[], Module], **options: Any
) -> tuple[Event, dict[str, np.ndarray]]:
    """The result, and the buffers on the first rank, which has the first stage."""

    def job(comm: Comm) -> tuple[Event, dict[str, np.ndarray]]:
        trainer = trainer_of(comm, build, **options)
        result = trainer.fit(NullReport())
        return result, {name: t.numpy() for name, t in trainer.model.named_buffers()}

    return threads.run(ranks, job)[0]


def same_as_one_rank(layout: str, build: Callable[[], Module], **changes: Any) -> None:
    ranks, options = LAYOUTS[layout]
    options = options | {name: changes[name] for name in options.keys() & changes}
    alone = {"micro_batches": options.get("micro_batches", 1)}
    if "slices" in options:
        alone = {"reproducible": True, "slices": options["slices"]}
    (wanted, buffers), (found, others) = (
        trained(1, build, **alone),
        trained(ranks, build, **options),
    )
    for name in ("loss", "test_loss"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-9)
    for name, array in buffers.items():
        np.testing.assert_allclose(others[name], array, rtol=1e-12, err_msg=name)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_of_nnmpi_random_are_the_same_in_every_layout(layout: str) -> None:
    same_as_one_rank(layout, with_own(Noise))
    assert trained(1, with_own(Noise))[0]["loss"] != trained(1, with_own(nn.Identity))[0]["loss"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_buffers_that_say_how_parts_combine_are_those_of_one_rank(layout: str, update: Any) -> None:
    same_as_one_rank(layout, with_own(lambda: Scaled("mean", update)))


@pytest.mark.parametrize("update", UPDATES)
def test_all_ways_to_change_a_buffer_give_the_same(update: Any) -> None:
    result, buffers = trained(1, with_own(lambda: Scaled("mean", update)))
    wanted, others = trained(1, with_own(Scaled))
    assert result["loss"] == pytest.approx(wanted["loss"], rel=1e-12)
    np.testing.assert_allclose(buffers["1.scale"], others["1.scale"], rtol=1e-12)
    assert type(buffers["1.scale"]) is np.ndarray


@pytest.mark.parametrize("layout", ["shared", "recomputed", "tp"])
def test_buffers_go_on_from_a_checkpoint(layout: str, tmp_path: Path) -> None:
    """Those of one rank do not depend on the layout that has written them."""
    ranks, options = LAYOUTS[layout]
    build, alone = with_own(Scaled), {"micro_batches": options.get("micro_batches", 1)}
    runs = []
    for name, size, given in (("alone", 1, alone), ("several", ranks, options)):
        folder = {"checkpoint_dir": str(tmp_path / name)}
        trained(size, build, epochs=1, **folder, **given)
        runs.append(trained(1, build, resume=True, **folder, **alone))
    (wanted, buffers), (found, others) = runs
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-9)
    assert buffers.keys() == others.keys() == {f"1.{name}" for name in SCALED}
    for name in SCALED:
        np.testing.assert_allclose(others[f"1.{name}"], buffers[f"1.{name}"], rtol=1e-12)
    assert others["1.count"] == 2 * len(rows()[1]) * 0.8


class Table(Module):
    """Has positions in a buffer, and a layer."""

    def __init__(self) -> None:
        self.register_buffer("rows", nnmpi.tensor(np.linspace(-1, 1, 90).reshape(15, 6)))
        self.fc = nn.Linear(6, 6)

    rows: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + self.rows[: x.shape[1]].std(0) * self.rows.T.mean(1)


class ReadsTable(Module):
    """Reads a buffer of a child in its own forward."""

    def __init__(self) -> None:
        self.table, self.fc = Table(), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.table(x) * self.table.rows.max(0)[0]).tanh() + self.table.rows[3]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operations_on_buffers_are_those_of_one_rank(layout: str) -> None:
    # which has two layers with operations between them: all that read one buffer in one stage
    same_as_one_rank(layout, with_own(ReadsTable), cut="3")


@pytest.mark.parametrize("options", [{}, {"pp": 2, "recompute": True}], ids=str)
def test_a_buffer_that_does_not_say_so_is_refused(options: Options) -> None:
    build = with_own(lambda: Scaled(None))
    trained(1, build)  # as in PyTorch
    with pytest.raises(ValueError, match=r"1.scale: `forward` changes this buffer, .* combine="):
        trained(2, build, **options)


@pytest.mark.parametrize("layout", ["one rank", "ring", "pipeline"])
def test_a_buffer_that_was_assigned_anew_is_saved(layout: str, tmp_path: Path) -> None:
    ranks, options = LAYOUTS.get(layout, (1, {}))
    combine, path = "mean" if layout == "ring" else None, str(tmp_path / "model.safetensors")
    _, buffers = trained(ranks, with_own(lambda: Scaled(combine, assigned)), save=path, **options)
    assert not np.array_equal(buffers["1.scale"], np.ones(6))
    np.testing.assert_array_equal(nnmpi.load(path)["1.scale"], buffers["1.scale"])


def test_other_outputs_of_a_recompute_are_found() -> None:
    ranks, options = LAYOUTS["recomputed"]
    expected = "stage 0: recomputed from the same input, it returns another output"
    with pytest.raises((ValueError, OtherRankError), match=expected):
        trained(ranks, with_own(OwnNoise), **options)


def hooked() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    model[1].register_forward_hook(lambda m, args, y: y - y.mean(0))
    return model


MIXING = {
    "Centred": with_own(Centred),
    "OwnNoise": with_own(OwnNoise),
    "Tanh": hooked,
}
"""Models, by the layer that mixes samples."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("layer", MIXING)
@pytest.mark.parametrize(
    "options", [{}, {"micro_batches": 2}, {"pp": 2, "cut": "1"}, {"tp": 2}], ids=str
)
def test_a_module_that_mixes_samples_is_named(layer: str, options: Options) -> None:
    def job(comm: Comm) -> str:
        return trainer_of(comm, MIXING[layer], **{"micro_batches": 2, **options}).warning

    for found in threads.run(2, job):
        assert f"1 ({layer}): the output for a sample depends on the other samples" in found


class Plain(Module):
    """Nothing in it depends on how a batch is cut."""

    def __init__(self) -> None:
        self.inside = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
        self.noise = Noise()

    def forward(self, x: Tensor) -> Tensor:
        return nnmpi.tanh(self.noise(self.inside(x))).reshape(-1, 4, 2).transpose(0, 2, 1)


@pytest.mark.parametrize("layout", ["ring", "recomputed", "slices", "tp"])
def test_a_module_that_keeps_samples_apart_gets_no_warning(layout: str) -> None:
    def job(comm: Comm) -> str:
        build = lambda: nn.Sequential(Plain(), nn.Flatten(), nn.Linear(8, 3))  # noqa: E731
        return trainer_of(comm, build, **LAYOUTS[layout][1]).warning

    assert set(threads.run(LAYOUTS[layout][0], job)) == {""}


def mean_loss(scores: Tensor, labels: Any) -> Tensor:
    return nn.CrossEntropyLoss()(scores, labels)


def sum_loss(scores: Tensor, labels: Any) -> Tensor:
    return nn.CrossEntropyLoss(reduction="sum")(scores, labels)


def plain() -> Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize("layout", ["shared", "zero 3", "recomputed", "slices"])
def test_a_loss_that_is_a_sum_is_refused_where_batches_are_cut(layout: str) -> None:
    ranks, options = LAYOUTS[layout]
    trained(ranks, plain, loss=mean_loss, **options)
    with pytest.raises((ValueError, OtherRankError), match="return the mean over the samples"):
        trained(ranks, plain, loss=sum_loss, **options)


# ---- nnmpi.random


def test_random_numbers_have_a_shape_a_type_and_a_distribution() -> None:
    m = nn.Module()
    found = nnmpi.random(m, (2000, 3))
    assert (found.shape, found.dtype) == ((2000, 3), np.float32)
    assert 0 < found.min() < 0.01 < 0.49 < found.mean() < 0.51
    like = nnmpi.tensor(np.zeros(1))
    normal = nnmpi.random(m, (2000, 3), normal=True, like=like)
    assert normal.dtype == np.float64
    assert abs(normal.mean()) < 0.05 < 0.95 < normal.std() < 1.05
    assert not np.array_equal(found, nnmpi.random(m, (2000, 3), name="other"))
    np.testing.assert_array_equal(found, nnmpi.random(m, (2000, 3)))


def test_random_numbers_change_with_step_seed_and_path() -> None:
    def drawn(steps: int, seed: int, path: str) -> Any:
        class Kept(Noise):
            def forward(self, x: Tensor) -> Tensor:
                found.append(nnmpi.random(self, x.shape))
                return x

        found: list[Any] = []
        model = nn.Sequential(nn.Sequential(Kept()) if path else Kept())
        model.seed = seed
        for _ in range(steps):
            model(nnmpi.tensor(np.zeros((4, 2))))
        return found[-1]

    first = drawn(1, 0, "")
    np.testing.assert_array_equal(first, drawn(1, 0, ""))
    for other in (drawn(2, 0, ""), drawn(1, 1, ""), drawn(1, 0, "inside")):
        assert not np.isclose(first, other).any()


def test_the_first_axis_is_that_of_the_samples() -> None:
    class Wrong(Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + nnmpi.random(self, (1, 6), like=x)

    with pytest.raises(ValueError, match=r"shape \(1, 6\) in a batch of 26: the first axis"):
        trainer_of(comm_self(), with_own(Wrong)).fit(NullReport())


# ---- what is not to be refused


def test_buffers_that_differ_end_a_run_after_its_model_is_saved(tmp_path: Path) -> None:
    """The change begins after the probe."""

    class LateCount(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            self.calls = getattr(self, "calls", 0) + 1
            return super().forward(x) if self.calls > 20 else x

    path = tmp_path / "model.safetensors"
    with pytest.raises(AgreedError, match=r"differ in 1\.scale, of which both have a copy"):
        trained(2, with_own(lambda: LateCount(None)), batch_size=4, save=str(path))
    assert path.exists()
