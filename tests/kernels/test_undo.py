"""Optimizer steps that keep what they change: whoever goes on has the bits of a step in one."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from nnmpi.arrays.kernels import steps, undo

ADAM = steps.AdamStep(1e-2, 0.9, 0.999, 1e-8, 0.1, True, 3)
SGD = steps.SgdStep(1e-2, 0.9, 0.1, True)
RMSPROP = steps.RmsPropStep(1e-2, 0.9, 1e-8, 0.1, 0.9)
ROOM = 3000  # bytes for what is kept: some blocks a step


class Rule(NamedTuple):
    """A step on values, gradients and sums, and the number of its sums."""

    step: Callable[..., None]
    sums: int


def scaled(p: Any, g: Any, kept: Any) -> None:
    steps.scale_loop(p, 0.3, *kept)


def adam(p: Any, g: Any, m: Any, v: Any, kept: Any) -> None:
    steps.adam(p, g, m, v, ADAM, None, kept)


def amsgrad(p: Any, g: Any, m: Any, v: Any, top: Any, kept: Any) -> None:
    steps.adam(p, g, m, v, ADAM, top, kept)


def sgd(p: Any, g: Any, kept: Any) -> None:
    steps.sgd(p, g, None, SGD._replace(momentum=0.0, nesterov=False), kept)


def nesterov(p: Any, g: Any, v: Any, kept: Any) -> None:
    steps.sgd(p, g, v, SGD, kept)


def rmsprop(p: Any, g: Any, s: Any, kept: Any) -> None:
    steps.rmsprop(p, g, s, None, None, RMSPROP._replace(momentum=0.0), kept)


def centered(p: Any, g: Any, s: Any, mean: Any, kept: Any) -> None:
    steps.rmsprop(p, g, s, None, mean, RMSPROP._replace(momentum=0.0), kept)


def moving(p: Any, g: Any, s: Any, v: Any, mean: Any, kept: Any) -> None:
    steps.rmsprop(p, g, s, v, mean, RMSPROP, kept)


RULES = {
    "scaled": Rule(scaled, 0),
    "adam": Rule(adam, 2),
    "amsgrad": Rule(amsgrad, 3),
    "sgd": Rule(sgd, 0),
    "nesterov": Rule(nesterov, 1),
    "rmsprop": Rule(rmsprop, 1),
    "centered": Rule(centered, 2),
    "moving": Rule(moving, 3),
}
LOOPS = (steps.scale_loop, steps.adam_loop, steps.sgd_loop, steps.rmsprop_loop)


@pytest.fixture(params=["compiled", "numpy"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        for loop in LOOPS:
            monkeypatch.setattr(loop, "compiled", None)
    elif steps.adam_loop.compiled is None:
        pytest.skip("the kernels were not compiled")
    return str(request.param)


def drawn(rule: Rule, n: int, dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    return [abs(rng.standard_normal(n)).astype(dtype) for _ in range(2 + rule.sums)]


def changed(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [arrays[0], *arrays[2:]]


def same(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", RULES)
def test_a_step_is_finished_from_within_any_block(name: str, dtype: str, kind: str) -> None:
    rule, n = RULES[name], 1000
    arrays = drawn(rule, n, dtype)
    memory = np.zeros((undo.NOTE_BYTES + ROOM) // np.dtype(dtype).itemsize, dtype)
    wanted = [a.copy() for a in arrays]
    rule.step(*wanted, ())
    for last, stop in ((0, 1), (100, 160), (517, 580), (940, n)):  # the block that is torn
        found = [a.copy() for a in arrays]
        memory[...] = 0
        for part in (slice(last), slice(last, stop)):
            if part.stop:
                rule.step(*(a[part] for a in found), (memory,))
        assert undo.note(memory)[0] == stop << undo.LENGTH_BITS
        undo.note(memory)[0] = last << undo.LENGTH_BITS | stop - last
        for a in changed(found):  # as a kernel leaves them: some are changed, others not
            a[last:stop:2] = np.nan
        rule.step(*(a[last:] for a in found), (memory,))
        assert undo.note(memory)[0] == n << undo.LENGTH_BITS
        same(found, wanted)


def test_a_block_that_was_noted_by_numpy_is_undone_by_a_compiled_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if steps.adam_loop.compiled is None:
        pytest.skip("the kernels were not compiled")
    arrays = drawn(RULES["adam"], 5000, "float32")
    memory = np.zeros(undo.NOTE_BYTES // 4 + 9000, "float32")
    wanted = [a.copy() for a in arrays]
    adam(*wanted, ())
    for _ in undo.blocks(changed(arrays), 3000, memory):
        for a in changed(arrays):
            a[100:2000] = np.nan
        break
    assert undo.note(memory)[0] == 3000
    adam(*arrays, (memory,))
    same(arrays, wanted)


def test_memory_that_has_no_room_for_a_block_is_refused() -> None:
    if steps.adam_loop.compiled is None:
        pytest.skip("the kernels were not compiled")
    arrays = drawn(RULES["adam"], 100, "float32")
    numbers = (None, None, 0.9, 0.999, 1e-2, 1e-8, 0.0, 1.0, 1.0)
    before = [a.copy() for a in arrays]
    short = np.zeros(undo.NOTE_BYTES // 4 + 2, "float32")
    wrong = np.zeros(undo.NOTE_BYTES // 4 + 60, "float32")
    undo.note(wrong)[0] = 21  # more than it has room for
    for memory in (short, wrong, short[:1], wrong[1:]):
        assert steps.adam_loop.compiled(*arrays, *numbers, memory) is NotImplemented
    same(arrays, before)


SIZE = 100_000
KILLED = """
import sys
from test_undo import adam, rows
from nnmpi.arrays.kernels import undo
*arrays, memory, began = rows(sys.argv[1])
print("begins", flush=True)
while True:
    undo.note(memory)[0] = 0
    began[0] += 1
    adam(*arrays, (memory,))
    began[1] += 1
"""


def rows(path: str | Path) -> list[np.ndarray]:
    """Values, gradients, two sums, the memory that undoes, and how many steps have begun and ended,
    in a file that processes share."""
    whole = np.memmap(path, np.float32, "r+", shape=4 * SIZE + 4000)
    parts = [np.asarray(whole[i * SIZE : min((i + 1) * SIZE, len(whole) - 4)]) for i in range(5)]
    return [*parts, np.asarray(whole[-4:]).view(np.int64)]


def test_a_process_that_is_killed_within_a_kernel_is_succeeded_by_another(tmp_path: Path) -> None:
    path, is_torn = tmp_path / "memory", False
    arrays = drawn(RULES["adam"], SIZE, "float32")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])}
    for _ in range(9):  # a process is rarely killed between two steps, and not each time
        np.concatenate([*arrays, np.zeros(4000, "float32")]).tofile(path)
        command = [sys.executable, "-c", KILLED, path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.02)
            process.kill()
        *found, memory, (began, ended) = rows(path)
        is_torn = began > ended and 0 < undo.done(memory) < SIZE
        if is_torn:
            break
    assert is_torn, f"{began} steps have begun, {ended} have ended"
    adam(*(a[undo.done(memory) :] for a in found), (memory,))
    for _ in range(began):
        adam(*arrays, ())
    same(found, arrays)
