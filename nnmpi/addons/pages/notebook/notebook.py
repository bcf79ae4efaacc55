"""nnmpi in notebooks: plans, layouts and logs are drawn if they are the last line of a cell;
`%%ranks 4` runs a cell on 4 ranks.

>>> %load_ext nnmpi
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

from nnmpi.addons.pages.notebook import pictures as pictures
from nnmpi.addons.pages.notebook.magic import ranks
from nnmpi.addons.pages.plot import RunLog, picture, read_logs
from nnmpi.addons.planning.run.on_paper import on_paper
from nnmpi.addons.simulator.commands.trace import TraceFile
from nnmpi.io.output.log_file import File
from nnmpi.options.config import Config
from nnmpi.parallel import strategies
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.run.setup.cutting import uncut_of


class RunLogs(NamedTuple):
    """The logs of several runs, whose epochs a notebook draws in one picture."""

    logs: tuple[RunLog, ...]

    def _repr_svg_(self) -> str | None:
        return picture(self.logs)


def log(*files: File) -> RunLogs:
    """Reads files that --log has written, for drawing."""
    return RunLogs(tuple(read_logs(files)))


def trace(file: str | os.PathLike[str]) -> TraceFile:
    """Reads a file that --trace has written, for drawing."""
    return TraceFile.read(Path(file))


def layout(config: Config, ranks: int, nodes: int = 1) -> Arrangement:
    """Returns the arrangement of a config on so many ranks, which need not run, to draw."""
    strategies.check(config, ranks)
    return on_paper(uncut_of(config)[1], Cluster.on_paper(ranks, nodes, config.device))


def load_ipython_extension(ipython: Any) -> None:
    """Registers the cell magic `%%ranks` in IPython; `%load_ext nnmpi` calls it."""
    ipython.register_magic_function(ranks, "cell", "ranks")
