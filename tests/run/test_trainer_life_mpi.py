"""Programs over MPI that end without `close`, and calls of the first rank alone."""

import os
import sys
from pathlib import Path

import pytest
from helpers.mpijob import MPIS, Ended, run

import nnmpi

PROGRAM = """
import sys
import numpy as np
from nnmpi import Config, Trainer, nn

x = np.random.default_rng(0).standard_normal((64, 4))
config = Config(epochs=1, quiet=True, {options})
trainer = Trainer(config, lambda: nn.Linear(4, 2), (x, (x[:, 0] > 0).astype(int)))
trainer.fit()
{rest}
"""
SHARED = """
assert trainer.predict(x).shape == (64, 2)
files = {line.split()[-1] for line in open("/proc/self/maps") if "/dev/shm/" in line}
print("\\n" + "\\n".join(f"maps {name}" for name in files), flush=True)
"""


def program(folder: Path, options: str, rest: str, python: str = sys.executable) -> Ended:
    (folder / "program.py").write_text(PROGRAM.format(options=options, rest=rest))
    return run(2, folder / "program.py", python=python)


@pytest.mark.parametrize("python", MPIS)
def test_a_program_may_end_without_closing(python: str, tmp_path: Path) -> None:
    ended = program(tmp_path, "allreduce='shared', progress='thread'", SHARED, python)
    assert ended.status == 0, ended
    files = {line.split()[1] for line in ended.out.splitlines() if line.startswith("maps ")}
    assert files
    assert not [name for name in files if os.path.exists(name)]


def test_the_first_rank_alone_saves_a_model_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    ended = program(tmp_path, "", f"if trainer.is_first:\n    trainer.save({str(path)!r})")
    assert ended.status == 0, ended
    assert {*nnmpi.load(path)} == {"weight", "bias"}


def test_a_call_that_other_ranks_miss_names_the_line(tmp_path: Path) -> None:
    ended = program(tmp_path, "", "if trainer.is_first:\n    trainer.evaluate()")
    assert ended.status not in (0, None), ended
    assert "evaluate" in ended.err
    assert "program.py:11" in ended.err
    assert "all ranks" in ended.err
