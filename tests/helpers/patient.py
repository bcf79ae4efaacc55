"""Runs a program whose ranks may start at times that are far apart, as on a busy machine:
NNMPI_TIMEOUT is for what they do then.

NNMPI_TIMEOUT=3 mpirun -n 2 python -m helpers.patient FILE ...
"""

import runpy
import sys
from collections.abc import Mapping

from nnmpi.comm.call_log import START, DebugSettings

of_variables = DebugSettings.of


def patient(variables: Mapping[str, str]) -> DebugSettings:
    return of_variables(variables)._replace(start=START)


if __name__ == "__main__":
    DebugSettings.of = patient  # type: ignore[method-assign,assignment]
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
