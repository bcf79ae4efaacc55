"""The table of laws: what holds on any ranks, and on which of them it is tried.

A law is a function of a Comm that all ranks call at once. `tests/laws/test_laws.py` and
`test_laws_of_state.py` run laws on ranks that are threads, `over_mpi.py` on processes of MPI.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from inspect import isfunction, signature
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from helpers.comm import (
    laws_agree,
    laws_background,
    laws_halves,
    laws_memory,
    laws_narrow,
    laws_processes,
    laws_refusals,
    laws_sums,
    laws_table,
    laws_works,
)
from helpers.sample import one_in
from helpers.tensor import (
    laws_sequence,
    laws_tensor,
    laws_tensor_graphs,
    laws_tensor_layers,
    laws_tensor_loss,
    laws_tensor_ops,
)
from helpers.training import (
    conformance,
    laws_checkpoint_files,
    laws_checkpoints,
    laws_goals,
    laws_layers,
    laws_masters,
    laws_moves,
    laws_pipeline_cuts,
    laws_pipeline_models,
    laws_pipelines,
    laws_ported,
    laws_recompute,
    laws_recurrent,
    laws_replica_state,
    laws_resume,
    laws_server,
    laws_slices,
    laws_snapshot,
    laws_spatial,
    laws_training,
    laws_zero,
)
from nnmpi.addons import ADD_ONS
from nnmpi.comm import Comm

Law = Callable[[Comm], None]


def of(*modules: ModuleType) -> dict[str, Law]:
    """The laws of modules: their public functions that take a Comm alone and return nothing."""
    return {
        name: f
        for module in modules
        for name, f in vars(module).items()
        if isfunction(f) and f.__module__ == module.__name__ and name[0] != "_" and is_law(f)
    }


def of_add_ons(add_ons: set[str], *names: str) -> dict[str, Law]:
    """The laws of modules that import add-ons; none where one was taken out, and they with it."""
    return of(*(import_module(f"helpers.{name}") for name in names if add_ons <= ADD_ONS.keys()))


def is_law(f: Callable[..., object]) -> bool:
    parameters = signature(f).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    return [p.annotation for p in needed] == [Comm] and signature(f).return_annotation is None


def each(law: Callable[[Comm, str], None], names: Iterable[str]) -> dict[str, Law]:
    """A law of a Comm and a name, for each name."""
    return {f"{law.__name__} {name}": partial(law, name=name) for name in names}


OF_COMM = of(
    *(laws_sums, laws_table, laws_works, laws_memory, laws_agree),
    *(laws_halves, laws_narrow, laws_refusals, laws_background),
)
OF_SHARDS = {
    **of(laws_tensor_ops, laws_sequence, laws_tensor_loss),
    **of_add_ons({"layer_ways"}, "tensor.laws_experts"),
    **each(laws_tensor_layers.equals_one_rank, laws_tensor_layers.CASES),
}
OF_SHARDED_MODELS = {
    **of(laws_tensor_layers),
    **each(laws_tensor_graphs.trains_as_one_rank, laws_tensor_graphs.MODELS),
}
OF_RECOMPUTATION = {
    **each(laws_recompute.what_runs_again_changes_no_bits, laws_recompute.UNTIED),
    **of(laws_recompute),
}
OF_MASTERS = {
    **each(laws_masters.values_are_the_rounding_of_masters, laws_masters.LAYOUTS),
    **each(laws_masters.what_is_written_wins, laws_masters.LAYOUTS),
    **each(laws_masters.a_file_has_the_masters, laws_masters.LAYOUTS),
}
COMPUTED = (
    "verify_finds_no_difference",
    "who_pushes_changes_no_bits",
    "recompute_changes_no_bits",
    "initial_values_are_those_of_one_rank",
    "steps_alone_equal_a_simulation_in_one_process",
    "gossip_equals_a_simulation_in_one_process",
    "what_a_user_sets_between_rounds_is_kept",
    "a_snapshot_goes_on_with_another_number_of_replicas",
    "a_run_sends_what_is_said",
)
"""Laws of what ranks compute, which is the same on threads and in processes."""
OF_REPLICA_STATE = {
    **each(laws_replica_state.other_replicas_take_what_the_table_says, laws_replica_state.MODES),
    **each(laws_replica_state.other_modes_take_what_the_table_says, laws_replica_state.MODES),
    **each(laws_replica_state.a_user_takes_what_the_table_says, laws_replica_state.MODES),
    **of(laws_replica_state),
}
OF_PIPELINES = of(laws_pipelines, laws_pipeline_models)
SENT = "outputs_in_any_memory_are_sent"
IN_V = "a_v_has_the_bits_of_interleaved"
OF_MANY = "other_ranks_equal_one_rank_in_any_layout"
OF_CHECKPOINTS = {name: law for name, law in of(laws_checkpoints).items() if name != OF_MANY}
FAMILIES = conformance.FAMILIES
OF_BACKUPS = of_add_ons({"recovery"}, "training.laws_backup")
OF_WORKS = of(laws_works, laws_memory, laws_processes)
OF_TRAINING = of(laws_training)
OF_AVERAGING = of_add_ons({"planning"}, "training.laws_averaging")


def of_processes(laws: dict[str, Law]) -> dict[str, Law]:
    """Those of laws that may fail in processes while they hold on threads."""
    return {name: law for name, law in laws.items() if name not in COMPUTED}


def late(ranks: int, n: int = 1) -> dict[str, Law]:
    """The law of late messages for one in n of the layouts of so many ranks; all with --all."""
    if "recovery" not in ADD_ONS:  # what trains them was taken out with it
        return {}
    chaos = import_module("helpers.training.laws_chaos")
    return each(chaos.has_the_bits_of_threads, one_in(n, chaos.layouts_of(ranks), "late"))


class Row(NamedTuple):
    """Laws, and the numbers of ranks by how they are run: `all` is what --all adds."""

    laws: dict[str, Law]
    threads: tuple[int, ...] = ()
    threads_all: tuple[int, ...] = ()
    mpi: tuple[int, ...] = ()
    mpi_all: tuple[int, ...] = ()
    mpich: tuple[int, ...] = ()
    chaos: tuple[int, ...] = ()
    chaos_all: tuple[int, ...] = ()
    chaos_mpich: tuple[int, ...] = ()


TABLE = {
    "comm": Row(
        *(OF_COMM, (5,)),
        threads_all=(1, 2, 3, 4, 8),
        mpi=(3,),
        mpi_all=(1, 2, 4, 8),
        mpich=(3,),
    ),
    "processes": Row(of(laws_processes), mpi=(2, 3, 4)),
    "distributed": Row(
        of_add_ons({"torchlike"}, "comm.laws_distributed"),
        (3,),
        threads_all=(1, 2, 4, 8),
        mpi=(2,),
        mpi_all=(1, 3, 4, 8),
    ),
    "training": Row(OF_TRAINING, (4,), threads_all=(1, 3), mpi_all=(2,)),
    "training of processes": Row(of_processes(OF_TRAINING), mpi=(2,)),
    "layers": Row(of(laws_layers), (3,), threads_all=(2,)),
    "averaging": Row(OF_AVERAGING, (4,), threads_all=(1, 2, 3, 8), mpi_all=(2, 3, 4, 8)),
    "averaging of processes": Row(of_processes(OF_AVERAGING), mpi=(2,)),
    "compression": Row(
        of_add_ons({"compression", "planning"}, "training.laws_compression"),
        (4,),
        threads_all=(1, 2, 3, 8),
        mpi=(2,),
        mpi_all=(3, 4, 8),
    ),
    "state of replicas": Row(OF_REPLICA_STATE, (4,), threads_all=(2, 3, 8), mpi_all=(3,)),
    "recurrent layers": Row(of(laws_recurrent), (3,), threads_all=(2,), mpi_all=(2,)),
    "recomputation": Row(OF_RECOMPUTATION, (1,), threads_all=(2, 3, 4, 8), mpi_all=(1, 2, 3, 4, 8)),
    "zero": Row(of(laws_zero), (3,), threads_all=(1, 4), mpi=(2,)),
    "autocast": Row(
        of_add_ons({"torchlike", "transformer", "layer_ways"}, "training.laws_autocast"),
        (2,),
        threads_all=(3, 4),
        mpi_all=(2,),
    ),
    "resume": Row(of(laws_resume), (4,), threads_all=(1, 3), mpi_all=(2,)),
    "gpt2": Row(
        of_add_ons({"language"}, "training.laws_gpt2", "training.laws_generation"),
        (2,),
        threads_all=(1, 3, 4),
        mpi_all=(2,),
    ),
    "pipelines": Row(OF_PIPELINES, (4,), threads_all=(1, 2), mpi_all=(3,)),
    "pipelines of processes": Row({SENT: OF_PIPELINES[SENT]}, mpi=(2,)),
    "pipelines in a v": Row({IN_V: OF_PIPELINES[IN_V]}, (2, 3, 6), mpi_all=(4,)),
    "goals": Row(each(laws_goals.gives_the_same_bits, laws_goals.GOALS), (3,), threads_all=(2,)),
    "loops and hooks": Row(of(laws_goals, laws_ported), (2,)),
    "masters": Row(OF_MASTERS, (2,)),
    "cuts": Row(of(laws_pipeline_cuts), (4,), threads_all=(1, 2), mpi_all=(3,)),
    "snapshot": Row(of(laws_snapshot), (3,), threads_all=(1, 2, 4), mpi_all=(3,)),
    "checkpoints": Row(OF_CHECKPOINTS, mpi=(3,)),
    "all checkpoints": Row(of(laws_checkpoints), threads_all=(1, 2, 3, 4, 8)),
    "backups": Row(OF_BACKUPS, mpi=(3,)),
    "checkpoint files": Row(of(laws_checkpoint_files), threads_all=(1, 3), mpi=(3,), mpich=(3,)),
    "moves": Row(of(laws_moves), threads_all=(1, 3, 5), mpi=(3,), mpich=(3,)),
    "slices": Row(of(laws_slices), mpi=(3,), mpi_all=(2,)),
    "server": Row(of(laws_server), mpi=(4,)),
    "shards": Row(OF_SHARDS, (1, 3), threads_all=(2, 4), mpi_all=(3,)),
    "sharded models": Row(OF_SHARDED_MODELS, (3,), threads_all=(1, 2), mpi_all=(3,)),
    "tensor parallel": Row(of(laws_tensor), (4,), threads_all=(1, 2), mpi=(3,)),
    "spatial": Row(of(laws_spatial), (3,), threads_all=(1, 2, 4), mpi_all=(3,)),
    "conformance": Row(
        each(conformance.family_trains_as_one_rank, FAMILIES), mpi=(2, 4), mpi_all=(8,)
    ),
    "conformance on 8 ranks": Row(
        each(conformance.family_trains_as_one_rank, conformance.ON_EIGHT), mpi=(8,)
    ),
    "conformance over MPICH": Row(
        each(conformance.family_trains_as_one_rank, ("zero", "pipelines")), mpich=(3,)
    ),
    "conformance of more layouts": Row(
        each(conformance.more_of_a_family_trains_as_one_rank, FAMILIES),
        mpi_all=conformance.RANKS_OVER_MPI,
    ),
    "late works": Row(OF_WORKS, chaos=(3,), chaos_all=(2, 4, 8), chaos_mpich=(3,)),
    "late conformance": Row(
        each(conformance.family_trains_as_one_rank, FAMILIES), chaos_all=(2, 4)
    ),
    "late layouts of 2 ranks": Row(late(2), chaos_all=(2,)),
    "late layouts of 3 ranks": Row(late(3, 6), chaos=(3,), chaos_mpich=(3,)),
    "late layouts of 4 ranks": Row(late(4), chaos_all=(4,)),
    "late conformance on 8 ranks": Row(
        each(conformance.family_trains_as_one_rank, conformance.ON_EIGHT), chaos_all=(8,)
    ),
    "late checkpoints": Row(
        {**of(laws_checkpoint_files), **OF_BACKUPS}, chaos=(3,), chaos_all=(2, 4)
    ),
    "late operations": Row(
        of_add_ons({"recovery"}, "training.laws_chaos"), chaos=(3,), chaos_all=(2, 4, 8)
    ),
}
"""On threads laws hold on more numbers of ranks; over MPI it counts that ranks are processes. The
table of conformance on threads has a test a row: test_conformance.py, test_strict_conformance.py.
"""


OF_STATE = {"state of replicas", "masters", "resume", "snapshot", "all checkpoints"}
OF_STATE |= {"checkpoint files", "moves"}
"""Rows about what training keeps."""

MANY = 4
"""A job of more ranks has the laws for as many only; a smaller one also those for fewer ranks."""


def table(column: str, ranks: int | None = None) -> Iterator[tuple[str, Law, int]]:
    """The names, laws and numbers of ranks in a column, or those of a job of so many ranks."""
    for row_name, row in TABLE.items():
        for size in row._asdict()[column]:
            if ranks in (None, size) or (ranks is not None and size < ranks <= MANY):
                for name, law in row.laws.items():
                    yield f"{row_name}: {name}", law, size


def on_threads(of_state: bool) -> list[Any]:
    """The laws on ranks that are threads, and their numbers, as parameters of a test."""
    columns = (("threads", ()), ("threads_all", pytest.mark.long))
    return [
        pytest.param(law, ranks, marks=marks, id=f"{name} {ranks}")
        for column, marks in columns
        for name, law, ranks in table(column)
        if (name.partition(": ")[0] in OF_STATE) == of_state
    ]


def jobs(column: str) -> list[int]:
    """The numbers of ranks of the jobs that have all laws of a column."""
    sizes = {size for row in TABLE.values() for size in row._asdict()[column]}
    few = [size for size in sizes if size <= MANY]
    return sorted({*([max(few)] if few else ()), *sizes - {*few}})
