"""The null device: nothing runs, and calls are noted so that bytes and operations are counted."""

import json
from functools import cache
from typing import Any

import pytest
from helpers.device import needs_emulator
from helpers.mpijob import ROOT
from helpers.programs import python

from emulator import machine, ptx
from emulator.work import Work, works

pytestmark = needs_emulator

PROGRAM = """
import json, resource
import numpy as np
from emulator import build, load, machine, work

load.install()
build.kernel_library = None  # no kernel is compiled to code of the host
import cupy as cp
from cupy.cuda import nccl

work.note_arrays()
text = 'extern "C" __global__ void twice(float* y, const float* x, int n) { y[0] = x[0] + n; }'
twice = cp.RawModule(code=text).get_function("twice")
x, c = cp.ones((6, 4), "f"), cp.ones((4, 5), "f")
comm = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
stream = cp.cuda.Stream(non_blocking=True)


def step():
    y = x @ c
    y[:, 0] * 2
    np.asarray(y[:3].sum().get())
    twice((1,), (32,), (x, c, np.int32(3)))


def captured():
    twice((1,), (32,), (x, c, np.int32(3)))
    cp.add(x, c[:1, :4], out=x)
    x[...] = 0
    comm.allReduce(x.data.ptr, x.data.ptr, x.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)


step()
with machine.noting() as calls:
    step()
with stream:
    stream.begin_capture(cp.cuda.runtime.streamCaptureModeRelaxed)
    captured()
    inner = stream.end_capture()
    stream.begin_capture(cp.cuda.runtime.streamCaptureModeRelaxed)
    inner.launch()
    graph = stream.end_capture()
with machine.noting() as of_graph:
    graph.launch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
large = cp.zeros(100 << 27, "f8")
found = {
    "calls": calls,
    "graph": of_graph,
    "values": [cp.full(3, 7).get().tolist(), large[-3:].get().tolist()],
    "megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10,
    "free": cp.cuda.runtime.memGetInfo()[0] >> 30,
    "problems": machine.problems(),
}
try:
    twice((1,), (32,), (x, np.uintp(c.data.ptr), np.int32(3)))
except TypeError as error:
    found["address"] = str(error)
try:
    cp.empty(60 << 30, "u1")
except cp.cuda.memory.OutOfMemoryError:
    found["refused"] = True
print(json.dumps(found))
"""


@cache
def found() -> Any:
    """What the program has noted, in a process of its own."""
    done = python(
        "-c", PROGRAM, folder=ROOT, NNMPI_EMULATOR="null=1", PYTHONPATH=str(ROOT / "tests")
    )
    assert done.status == 0, done.err
    return json.loads(done.out)


def of_calls(kind: str, *twice: tuple[str, int]) -> list[Work]:
    return [*works((tuple(call) for call in found()[kind]), twice)]


def test_calls_are_noted_with_their_bytes_and_operations() -> None:
    assert of_calls("calls") == [
        Work("gemm", 4 * (6 * 4 + 4 * 5 + 6 * 5), 2 * 6 * 4 * 5, "float32"),
        Work("cupy_multiply__float32_float_float32", 4 * (6 + 6)),
        Work("reduce", 4 * (15 + 1)),
        Work("device to host pageable", 4),
        Work("twice", 6 * 4 * 4 + 4 * 5 * 4),
    ]


def test_a_graph_is_noted_with_its_nodes_and_those_of_graphs_in_it() -> None:
    calls = found()["graph"]
    assert [kind for kind, _ in calls] == ["graph", *["node"] * 4]
    assert calls[0][1] == "5"  # with the launch of the inner graph
    assert of_calls("graph", ("twice", 1)) == [
        Work("twice", 96 + 2 * 80),
        Work("cupy_add__float32_float32_float32", 4 * (24 + 4 + 24)),
        Work("memset", 4 * 24),
        Work("all-reduce", 4 * 24),
    ]
    assert found()["address"].startswith("a kernel gets an address, whose bytes are not known")


def test_memory_takes_none_of_the_host_and_reads_as_zeros() -> None:
    assert found()["values"] == [[0] * 3, [0.0] * 3]
    assert found()["megabytes"] < 50
    assert found()["free"] == 39
    assert found()["refused"]
    assert not found()["problems"]


def test_a_process_that_has_another_device_does_not_get_a_null_one() -> None:
    with pytest.raises(ValueError, match='NNMPI_EMULATOR="null=1"'):
        machine.set_options(machine.of_environment()._replace(null=True))


def test_the_table_of_a_module_has_its_kernels_and_the_bytes_of_their_parameters() -> None:
    text = """.version 8.5 // .entry no(
        .func (.param .b32 r) helper(.param .b64 p) { ret; }
        .visible .entry one(.param .u64 .ptr .align 1 a, .param .align 8 .b8 b[32], .param .u8 c)
        .maxntid 128, 2, 1 { .reg .b32 x; ret; }
        .entry two() { /* .entry no() {} */ ret; }"""
    assert [*map(machine.row, ptx.kernels(text))] == ["one 256 8 32 1", "two 1024"]
