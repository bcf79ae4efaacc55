"""How much code a reader has to know: it only becomes less. Lower a limit when its meter falls."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

LOADED = {"loaded": 166, "trainer": 309}
"""The most modules that `import nnmpi` and `nnmpi.Trainer` may load."""

PLAIN = 9_264, 200
"""The most code lines, and files, of functions that a plain data-parallel run may execute. They
differ by some lines between processors, whose kernels are others."""

SEVERAL = 13_410, 244
"""The same for ZeRO, pipelines, tensor parallelism, checkpoints and --verify too."""


def test_meters_only_fall() -> None:
    command = [sys.executable, "scripts/meters.py", "--json"]
    run = subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=300
    )
    meters = json.loads(run.stdout.splitlines()[-1])
    print(meters)
    for name, most in LOADED.items():
        assert meters[name] <= most, name
    for name, (lines, files) in (("plain", PLAIN), ("several", SEVERAL)):
        assert meters[name][0] <= lines, name
        assert meters[name][1] <= files, name
