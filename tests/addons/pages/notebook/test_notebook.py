"""What a notebook shows: pictures of values, and `%%ranks`."""

import json
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers import mpijob
from helpers.programs import printed, python

import nnmpi
from nnmpi import nn, notebook
from nnmpi.addons.pages.notebook.magic import RanksError, ranks
from nnmpi.nn.tracing import trace
from nnmpi.parallel.mesh import Mesh


def drawn(value: Any) -> ElementTree.Element:
    """The picture of a value, which is as wide as the page that shows it: all lies within it."""
    root = ElementTree.fromstring(value._repr_svg_())
    assert root.get("height") is None  # scaled to the width of a page
    *_, width, height = map(float, root.get("viewBox", "").split())
    for part in root.iter():
        assert 0 <= float(part.get("x", 0)) <= width
        assert 0 <= float(part.get("y", 0)) <= height
    return root


def words(value: Any) -> list[str]:
    """The texts of the picture of a value."""
    texts = (e.text for e in drawn(value).iter() if not e.tag.endswith("style"))
    return [text for text in texts if text and text.strip()]


def test_a_mesh_shows_every_rank_once() -> None:
    shown = words(Mesh({"pp": 2, "dp": 3, "cp": 1, "tp": 4}))
    assert shown[0] == "pp 2 x dp 3 x tp 4"
    assert [int(text) for text in shown if text.isdecimal()] == [*range(24)]
    boxes = [e for e in drawn(Mesh({"pp": 2, "dp": 3, "tp": 4})).iter() if e.tag.endswith("rect")]
    assert len({(e.get("x"), e.get("y")) for e in boxes}) == 24 + 1  # and the background
    assert words(Mesh({"dp": 1, "tp": 1}))[0] == "one rank"
    assert words(Mesh({"dp": 100, "tp": 2}))[0] == "dp 100 x tp 2, 64 of 200 ranks"


def test_a_graph_has_a_row_for_each_node() -> None:
    layers = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)
    samples = nnmpi.zeros(2, 6)
    g = trace(nn.Sequential(*layers), lambda n: ((samples[:n],), {}), "float32")
    assert words(g)[:3] == ["3 nodes, 83 parameters", "output", "parameters"]
    assert [text for text in words(g) if text.isdecimal()] == ["56", "27"]
    columns = Counter(e.get("x") for e in drawn(g).iter() if e.tag.endswith("text"))
    assert sorted(columns.values()) == [1, 3, 4, 4]  # title, names; outputs, sizes, with headings


@pytest.fixture
def has_mpirun() -> None:
    mpijob.launcher(sys.executable)  # skips where there is none


@pytest.mark.usefixtures("has_mpirun")
def test_a_cell_on_ranks(capfd: pytest.CaptureFixture[str]) -> None:
    """No rank waits for input; one that fails is shown once."""
    code = "import sys\nprint(comm.rank, 'of', comm.size)\nprint('twice' + sys.stdin.read())\n"
    code += "comm.barrier()\nif comm.rank == 1:\n    raise ValueError('here')\ncomm.barrier()"
    with pytest.raises(RanksError, match="failed with status 1"):
        ranks("3", code)
    out, err = capfd.readouterr()
    said = [f"rank {r} | {line}" for r in range(3) for line in (f"{r} of 3", "twice")]
    assert out == "\n".join([*said, ""])
    assert err.count("ValueError: here") == 1
    assert "    raise ValueError('here')" in err


@pytest.mark.usefixtures("has_mpirun")
@pytest.mark.skipif(not find_spec("IPython"), reason="IPython is not installed")
def test_in_ipython(tmp_path: Path) -> None:
    cells = ["%load_ext nnmpi", "%%ranks 2\nprint(comm.rank)", "%%ranks x\n1"]
    code = "from IPython.core.interactiveshell import InteractiveShell as S\ns = S.instance()\n"
    code += f"for c in {json.dumps(cells)}: print(s.run_cell(c).success)\n"
    code += "from nnmpi.schedules.pipeline import SCHEDULES as P\n"
    code += "shown = s.display_formatter.format(P['1f1b'])[0]\n"
    code += "print(*shown)\nprint(shown['text/plain'])"
    run = python("-c", code, IPYTHONDIR=str(tmp_path))
    lines = run.out.splitlines()
    assert lines[:4] == ["True", "rank 0 | 0", "rank 1 | 1", "True"]
    assert lines[-3:] == ["False", "text/plain image/svg+xml", "<Schedule>"]
    assert "%%ranks x: write a number of ranks, as %%ranks 4\n" in run.out + run.err
    assert "Traceback" not in run.out + run.err
    assert nnmpi.load_ipython_extension is notebook.load_ipython_extension


def test_values_draw_themselves_in_ipython_only() -> None:
    shown = "from nnmpi.schedules.find import find; print(hasattr(find('gpipe'), '_repr_svg_'))"
    assert printed(f"import nnmpi; {shown}") == "False"
    ipython = "import sys, types; sys.modules['IPython'] = types.ModuleType('IPython')"
    assert printed(f"{ipython}; import nnmpi; {shown}") == "True"
