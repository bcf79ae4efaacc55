"""docs/first-hour.md: its commands, run in order in an empty folder, print what the page shows."""

import re
import sys
from pathlib import Path

import pytest
from helpers.mpijob import ROOT, environment, launcher, outcome_of, ulfm

PAGE = (ROOT / "docs" / "first-hour.md").read_text(encoding="utf-8")
FILES = re.findall(r"^```\w+\n# ([\w.]+)\n(.*?)^```", PAGE, re.S | re.M)
SHOWN = re.findall(r"^```\n\$ ([^\n]*)\n(.*?)^```", PAGE, re.S | re.M)
TIMELINE = r"rank \d  |\S+ forward   "
"""Lines of a drawing: its letters depend on times, as does what fits in a column."""
SECONDS = 150
"""The time limit of a command: of about 15 where two cores do nothing else."""


def masked(text: str) -> list[str]:
    """The lines of a text, without numbers and the spaces before them."""
    return [re.sub(r" *\d[\d.,]*", " #", line).strip() for line in text.splitlines()]


def trained(text: str) -> list[float]:
    """The losses and accuracies of all epochs."""
    epochs = re.findall(r"^epoch +\d+ +loss (\S+) +test loss (\S+) +accuracy (\S+)%", text, re.M)
    return [float(x) for epoch in epochs for x in epoch]


@pytest.mark.timeout(8 * SECONDS)
def test_its_commands_print_what_it_shows(tmp_path: Path) -> None:
    """Lines without the numbers of a machine; of runs of three epochs also the losses."""
    ulfm(sys.executable)  # or the test is skipped
    for name, text in FILES:
        (tmp_path / name).write_text(text, encoding="utf-8")
    folders = Path(sys.executable).parent, Path(launcher(sys.executable)[0]).parent
    path = f'PATH="{":".join(map(str, folders))}:$PATH"; cd {tmp_path}'
    assert {name for name, _ in FILES} == {"net.py", "lose.sh"}
    assert len(SHOWN) == 7
    for command, shown in SHOWN:
        done = outcome_of(["bash", "-c", f"{path}; {command}"], environment({}), SECONDS)
        print(f"$ {command}\n{done.out}{done.err}")
        assert done.status == 0
        lines = [x for x in shown.splitlines() if x != "..." and not re.match(TIMELINE, x)]
        assert [x for x in masked("\n".join(lines)) if x not in masked(done.out)] == []
        if "--epochs 3 " in f"{command} ":
            assert trained(done.out) == pytest.approx(trained(shown), rel=0.02)
    assert (tmp_path / "net.safetensors").exists()
