"""WholeArrays: whole tensors from parts on several ranks, their hash, their files, differences."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.tensor.elsewhere import stage_of

import nnmpi
from nnmpi import nn
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.files import saving
from nnmpi.nn.initial import normal
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Place
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.model.whole import WholeArrays, first_difference, whole_model


def part(comm: Comm, n: int) -> tuple[int, int]:
    return n * comm.rank // comm.size, n * (comm.rank + 1) // comm.size


class Cut(nn.Module):
    """A weight cut by columns, one cut by rows, a cut buffer, and a bias that all ranks have."""

    def __init__(self, comm: Comm) -> None:
        columns = Place("", (3, 7), ((0, 3), part(comm, 7)))
        rows = Place("", (5, 2), (part(comm, 5), (0, 2)))
        self.columns = Parameter.lazy(columns, normal(1.0), (1, 0))
        self.rows, self.bias = Parameter.lazy(rows, normal(1.0)), nn.Parameter(np.arange(4.0))
        place = Place("", (7,), (part(comm, 7),))
        self.register_buffer("mean", np.arange(*part(comm, 7), dtype="float32"), place=place)
        self.register_buffer("count", np.array(3))


def model(comm: Comm) -> nn.Module:
    made = nn.Sequential(Cut(comm), nn.Linear(2, 2))
    made.seed = 1
    made[1].weight = made[0].bias.__class__(np.ones((2, 2)))
    return made.to("float32")


WHOLE = model(threads.comm_self()).state_dict()


def of(module: nn.Module, comm: Comm, held: Callable[[str], bool] = lambda _: True) -> WholeArrays:
    """The whole arrays of a model, of which each rank has what `held` says."""
    return whole_model(ModelPart(module, {0: module}, held), comm)


def digest() -> str:
    found = hashlib.sha256()
    for p in model(threads.comm_self()).parameters():
        found.update(np.ascontiguousarray(p.data).tobytes())
    return found.hexdigest()


def equal(found: dict[str, np.ndarray]) -> None:
    assert list(found) == list(WHOLE)
    for name, value in found.items():
        np.testing.assert_array_equal(value, WHOLE[name], err_msg=name, strict=True)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_writer_gets_each_tensor_whole_and_in_order(ranks: int) -> None:
    def rank(comm: Comm) -> tuple[dict[str, np.ndarray], str, bool, Any]:
        arrays = of(model(comm), comm)
        index = [(x.name, np.dtype(x.dtype), x.place.shape) for x in arrays.arrays]
        return dict(arrays), arrays.sha256(), arrays.writer_has_all, index

    (first, *others) = threads.run(ranks, rank)
    equal(first[0])
    assert not any(found for found, *_ in others)
    assert {sha for _, sha, *_ in (first, *others)} == {digest()}
    assert first[2] == (ranks == 1)
    assert first[3] == [(name, a.dtype, a.shape) for name, a in WHOLE.items()]


def tied_pipeline() -> nn.Sequential:
    """Its first and last layers share a weight."""
    tied = nn.Linear(3, 3, bias=False)
    middle = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)
    made = nn.Sequential(nn.Linear(3, 3, bias=False), *middle, tied)
    tied.weight = made[0].weight
    made.seed = 4
    return made.to("float64")


def test_a_file_is_written_one_tensor_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"

    def rank(comm: Comm) -> None:
        whole = of(model(comm), comm)
        arrays = (values for _, values in whole)
        if comm.rank == 0:
            rows = [(x.name, np.dtype(x.dtype), x.place.shape) for x in whole.arrays]
            saving.write(path, [saving.HeaderRow(*row) for row in rows], arrays, {}, {})
        assert not list(arrays)

    threads.run(3, rank)
    found = nnmpi.load(path)
    equal({name: found[name] for name in WHOLE})


def test_a_tied_parameter_counts_once_and_is_written_twice() -> None:
    def rank(comm: Comm) -> tuple[list[str], str]:
        tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        tied[1].weight = tied[0].weight
        arrays = of(tied.to("float32"), comm)
        return [name for name, _ in arrays], arrays.sha256()

    single = nn.Sequential(nn.Linear(3, 3, bias=False)).to("float32")
    names, sha = threads.run(2, rank)[0]
    assert names == ["0.weight", "1.weight"]
    assert sha == of(single, threads.comm_self()).sha256()


@pytest.mark.parametrize("where", ["0.columns", "0.bias", "0.mean"])
def test_only_copies_of_one_part_are_compared(where: str) -> None:
    """Ranks 0 and 1 have one half, ranks 2 and 3 the other; rank 3 changes a number."""

    def rank(comm: Comm) -> tuple[str, int] | None:
        half = comm.split(comm.rank % 2, comm.rank)
        assert half is not None
        made = model(half)
        if comm.rank == 3:
            tensor = {place.path: t for place, t in made.tensors()}[where]
            array = tensor.data if isinstance(tensor, nnmpi.Tensor) else tensor
            array[..., 0] += 1
        return first_difference(ModelPart.whole(made), comm)

    other = 0 if where == "0.bias" else 2
    assert threads.run(4, rank) == [None, None, None, (where, other)]


# ---- who has what


@pytest.mark.parametrize(
    "parts",
    [[(0, 2), (3, 4)], [(0, 2), (1, 3)], [(0, 2), (0, 2)]],
    ids=["gap", "gap and overlap", "half"],
)
def test_parts_that_do_not_make_up_a_tensor_are_refused(parts: list[tuple[int, int]]) -> None:
    def rank(comm: Comm) -> None:
        module = nn.Module()
        place = Place("", (4,), (parts[comm.rank],))
        module.register_buffer("b", np.ones(place.local_shape), place=place)
        with refused("b: the parts", "do not cover its shape (4,)"):
            of(module, comm)

    threads.run(2, rank)


def test_a_tensor_that_no_rank_has_is_refused() -> None:
    with refused("weight: the parts [] that ranks have"):
        of(nn.Linear(2, 2), threads.comm_self(), "bias".__eq__)


@pytest.mark.parametrize("forgotten", ["2.running_mean", "3.bias"])
def test_a_tensor_that_no_stage_has_is_refused(forgotten: str) -> None:
    def rank(comm: Comm) -> None:
        stage = stage_of(comm.rank, 0, 2)
        with refused(f"{forgotten}: the parts [] that ranks have"):
            of(tied_pipeline(), comm, lambda path: path != forgotten and stage(path))

    threads.run(2, rank)
