"""How much code a reader has to know: it only becomes less. Lower a limit when its meter falls."""

import json

from helpers.mpijob import ROOT
from helpers.programs import python

LOADED = {"loaded": 142, "trainer": 299}
"""The most modules that `import nnmpi` and `nnmpi.Trainer` may load."""

PLAIN = 9_070, 193
"""The most code lines, and files, of functions that a plain data-parallel run may execute. They
differ by some lines between processors, whose kernels are others."""

SEVERAL = 13_265, 242
"""The same for ZeRO, pipelines, tensor parallelism, checkpoints and --verify too."""

STEPS = {"replay": (979, 38), "tape": (1_908, 64), "zero 3 in pipelines": (1_092, 35)}
"""The same for one step of the first rank: what a reader of a step has to know."""


def test_meters_only_fall() -> None:
    run = python("scripts/meters.py", "--json", folder=ROOT, timeout=300)
    assert run.status == 0, run.err
    meters = json.loads(run.out.splitlines()[-1])
    print(meters)
    for name, most in LOADED.items():
        assert meters[name] <= most, name
    assert meters["steps"].keys() == STEPS.keys()
    found = {"plain": meters["plain"], "several": meters["several"], **meters["steps"]}
    for name, (lines, files) in {"plain": PLAIN, "several": SEVERAL, **STEPS}.items():
        assert found[name][0] <= lines, name
        assert found[name][1] <= files, name
