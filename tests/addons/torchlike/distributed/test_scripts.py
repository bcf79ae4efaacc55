"""Scripts that were written for torch.distributed and torchrun, on ranks of mpirun."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.mpijob import environment, launcher, outcome_of, run

import nnmpi
import nnmpi.distributed as dist
from nnmpi.comm import comm_self
from nnmpi.comm.allreduce.dispatch import SHORT
from nnmpi.distributed.environment import set_variables
from nnmpi.distributed.rows import Rows
from nnmpi.run.__main__ import command, parser

SCRIPT = """
import os
import nnmpi as torch
import nnmpi.distributed as dist
import nnmpi.nn.functional as F
from nnmpi import nn, optim
from nnmpi.nn.parallel import DistributedDataParallel as DDP
from nnmpi.utils.data import DataLoader, TensorDataset
from nnmpi.utils.data.distributed import DistributedSampler

rank, ranks = (int(os.environ.get(name, d)) for name, d in (("RANK", 0), ("WORLD_SIZE", 1)))
assert int(os.environ.get("LOCAL_RANK", 0)) in range(ranks)
dist.init_process_group(backend="nccl")
assert (dist.get_rank(), dist.get_world_size()) == (rank, ranks)
torch.manual_seed(1)
x, y = torch.randn(48, 8).double(), torch.randint(0, 3, (48,))
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double())
data = TensorDataset(x, y)
sampler = DistributedSampler(data)
opt = optim.AdamW(model.parameters(), lr=0.05)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in DataLoader(data, batch_size=12 // ranks, sampler=sampler):
        loss = F.cross_entropy(model(a), b)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
total = loss.detach()
dist.all_reduce(total, op=dist.ReduceOp.AVG)
equal = torch.verify()
if rank == 0:
    print(f"loss {total.item():.12g}")
    print(equal)
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_gives_the_loss_of_one_rank(script: Path, is_sample: bool) -> None:
    one = run(1, script)
    assert one.status == 0, one.err
    for ranks in (3,) if is_sample else (2, 3, 4):  # two are in the next test
        many = run(ranks, script)
        assert many.status == 0, many.err
        (loss, equal), (want, _) = many.out.splitlines(), one.out.splitlines()
        assert float(loss.split()[1]) == pytest.approx(float(want.split()[1]), rel=1e-10)
        assert equal.startswith(f"{ranks} ranks (0, 1")
        assert equal.endswith("4 parameters and buffers are equal on all, bit by bit")


def test_autocast_on_several_ranks(script: Path) -> None:
    loss = "        loss = F.cross_entropy(model(a), b)\n"
    within = "        with torch.autocast('cpu', torch.bfloat16):\n    "
    check = "        assert {str(p.grad.dtype) for p in model.parameters()} == {'float32'}\n"
    step = "        opt.step()\n"
    text = SCRIPT.replace(".double()", "").replace(loss, within + loss)
    script.write_text(text.replace(step, check + step))
    losses = []
    for ranks in (1, 2):
        job = run(ranks, script)
        assert job.status == 0, job.err
        loss, equal = job.out.splitlines()
        losses.append(float(loss.split()[1]))
        assert ranks == 1 or equal.endswith("are equal on all, bit by bit")
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


def test_nnmpi_run_starts_ranks_as_torchrun_does(tmp_path: Path) -> None:
    launcher(sys.executable)  # skips where there is none
    path = tmp_path / "prints.py"
    path.write_text(
        "import os, sys; print(*(os.environ[k] for k in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', "
        "'LOCAL_WORLD_SIZE')), __name__, *sys.argv[1:])"
    )
    ranked = [sys.executable, "-m", "nnmpi.run", "--nproc_per_node=2", str(path), "--lr", "3"]
    ended = outcome_of(ranked, environment({}), 100)
    assert ended.status == 0, ended.err
    rows = [line.split() for line in ended.out.splitlines()]
    for column, want in enumerate((["0", "1"], ["0", "1"], ["2", "2"], ["2", "2"])):
        assert sorted(row[column] for row in rows) == want
    assert [row[4:] for row in rows] == [["__main__", "--lr", "3"]] * 2


def test_the_launcher_of_this_python_starts_modules_too() -> None:
    given = parser().parse_args(["--nproc-per-node", "4", "-m", "package.script", "-x"])
    assert command(given)[1:] == [
        *("-n", "4", sys.executable, "-m", "nnmpi.run", "-m", "package.script", "-x")
    ]


OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "WORLD_SIZE": "set before",
}


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (OPEN_MPI, ("5", "set before", "1", "4")),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, ("2", "3", "2", "3")),
        ({"PMIX_RANK": "1", "SLURM_NTASKS": "6", "SLURM_LOCALID": "0"}, ("1", "6", "0", "6")),
        ({"RANK": "7"}, ("7", None, None, None)),
    ],
)
def test_variables_are_those_of_torchrun(
    given: dict[str, str], want: tuple[str | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {**given})
    set_variables()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    assert tuple(map(os.environ.get, names)) == want


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group()
    yield
    dist.destroy_process_group()


X = np.ones(4)
REFUSED: dict[str, Callable[[], Any]] = {
    "call destroy_process_group() first": dist.init_process_group,
    "output has 3 elements, and 4 are": lambda: dist.all_gather_into_tensor(X[:3], X),
    "tensor_list has 2 entries: ... each of 1": lambda: dist.all_gather([X, X], X),
    "split sizes [3] for 4 rows": lambda: dist.all_to_all_single(X, X, [3], [4]),
    "tag 40000 is out of range": lambda: dist.isend(X, 0, tag=40000),
    "read-only: pass a copy": lambda: dist.all_reduce(np.broadcast_to(1.0, 3)),
    "no parameter of this model is trained": lambda: nnmpi.nn.parallel.DistributedDataParallel(
        nnmpi.nn.Linear(2, 2).requires_grad_(False)
    ),
}


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("words", REFUSED)
def test_arguments_that_do_not_fit_are_refused(words: str) -> None:
    with refused(words):
        REFUSED[words]()
    with pytest.raises(TypeError, match="all_reduce: list is no array"):
        dist.all_reduce([1.0])


@pytest.mark.usefixtures("group")
def test_a_write_that_a_gradient_needs_is_noticed() -> None:
    w, t = nnmpi.nn.Parameter(np.ones(3)), nnmpi.tensor([1.0, 2.0, 3.0])
    loss = (w * t).sum()
    dist.all_reduce(t)
    with pytest.raises(RuntimeError, match="written in place"):
        loss.backward()


def test_groups_that_may_not_wait_for_all_ranks_choose_by_the_size() -> None:
    comm = comm_self()
    assert Rows(comm).sum_of(8) == "auto"
    assert Rows(comm, "ring", may_wait=False).sum_of(8) == "ring"
    few = Rows(comm, may_wait=False)
    assert (few.sum_of(SHORT), few.sum_of(SHORT + 4)) == ("doubling", "halving")
