"""scripts/slurm: jobs under a Slurm of two nodes on this machine, where it can be started."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.mpijob import ROOT, environment, launcher

LOCAL = ROOT / "scripts" / "slurm" / "local"
PROGRAMS = ("munged", "munge", "slurmctld", "slurmd", "sbatch", "sinfo")
SEES = "from nnmpi.comm import world; print(world().rank, world().node())"
JOBS = """
sbatch --wait --nodes=2 --ntasks-per-node=2 --output=node.out --wrap='mpirun python -c "$SEES"'
job() {
    sbatch --wait --no-requeue --time=1 --signal=B:USR1@50 --ntasks-per-node=2 "$@" \
        --model iris-mlp --data iris --lr 0.001 --lr-schedule constant --epochs 1000000
    echo "status $?"
}
job "$TRAIN"
job --nodes=1 "$TRAIN" --checkpoint-dir nnmpi-2.checkpoints
"""


@pytest.mark.timeout(400)
def test_a_job_stops_before_its_time_limit_and_another_one_goes_on(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("to start a Slurm takes root")
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"there is no {' '.join(missing)}; scripts/slurm/local says what to install")
    mpirun, *_ = launcher(sys.executable)
    folders = (os.path.dirname(sys.executable), os.path.dirname(mpirun))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "activate").write_text(f"PATH={':'.join(folders)}:$PATH\n")
    own = {
        "PATH": os.pathsep.join((*folders, os.environ["PATH"])),
        "NNMPI_VENV": str(tmp_path),
        "OMPI_MCA_mpi_yield_when_idle": "1",  # four ranks share the cores of one machine
        "SEES": SEES,
        "TRAIN": str(ROOT / "scripts" / "slurm" / "train.sbatch"),
    }
    with subprocess.Popen(
        [LOCAL, "bash", "-c", JOBS],
        cwd=tmp_path,
        env=environment(own),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as local:
        try:
            out, _ = local.communicate(timeout=350)
        except BaseException:
            local.terminate()  # it takes the Slurm down
            raise
    outputs = "\n".join(path.read_text() for path in sorted(tmp_path.glob("*.out")))
    assert out.count("status 75\n") == 2, (out, outputs)
    pairs = ["0 (0, 1)", "1 (0, 1)", "2 (2, 3)", "3 (2, 3)"]  # ranks of a node see each other
    assert sorted((tmp_path / "node.out").read_text().splitlines()) == pairs
    (start, *_, suspended), (resumed, *epochs, again) = map(events, (2, 3), [tmp_path] * 2)
    assert (start["ranks"], suspended["event"]) == (4, "suspended")
    assert (resumed["ranks"], resumed["event"]) == (2, "resumed")
    assert resumed["step"] == suspended["steps"] < again["steps"]
    assert epochs[0]["accuracy"] > 0.9


def events(job: int, folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"nnmpi-{job}.jsonl").read_text().splitlines()]
