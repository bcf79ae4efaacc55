"""The commands of README, CONTRIBUTING and docs/ run: some of them, or all with --all."""

import re
from pathlib import Path

import pytest
from helpers.mpijob import ROOT, environment, outcome_of

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")))
}
STARTS = re.compile(
    r"(?:\w+=\S+ )*(?:python |mpirun |scripts/|pip install|sbatch |source |py-spy |cd )|[A-Z]=\""
)
"""How a line of a block of code begins that is typed in a shell."""

NOT_HERE = {
    r"mnist(?!.*simulate)": "images of MNIST have to be downloaded",
    r"^sbatch|^scripts/(cluster|quickstart|test)|^source": "Slurm, root, or another environment",
    r"^scripts/gpu_minutes|-m emulator|--device cuda": "takes minutes, or a GPU",
    r"^pip install|^py-spy|python -m pytest": "installs, looks at a process, or is a test itself",
    r"python setup\.py": "builds nnmpi",
    r"pdb|--stdin|^R=|my_script": "a person has the terminal, and a script of their own",
    r"gpt2/|--tokenizer FOLDER|--load|--model gpt2\b": "weights and a tokenizer are downloaded",
    r"tokens\.npy": "follows a command that needs a tokenizer",
    r"gpt:6x6x384|gpt:12x12": "takes minutes",
    r"--resume|nnmpi\.(checkpoint|report|watch)|--data text:": "needs what others have written",
    r"apptainer": "needs Apptainer, or an image",
    r"mypackage|run\.toml|late\.py|mine|net:Net": "has a user's own code; a page may have a test",
    r"python \w+\.py$": "runs in a test of its page",
    r"chain:CHAIN|benchmarks|^cd |scripts/draw_": "runs in a test of its own",
}
"""Commands that this test does not run, by a pattern, and why."""


def commands() -> list[tuple[str, str]]:
    """(page, command) of each line of the blocks of code that is typed in a shell."""
    found = []
    for page, text in PAGES.items():
        for language, block in re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.S | re.M):
            if language:  # matched too, so that its end is not taken for the start of a block
                continue
            for line in re.sub(r"\\\n\s*", "", block).splitlines():
                command = re.sub(r"\s+(#| {2}).*", "", line.removeprefix("$ "))
                if STARTS.match(command) and not re.match(r"(python|mpirun) +\w+ {2}", line):
                    found.append((page, command))
    return found


def reason(command: str) -> str:
    """Why this command is not run here; nothing if it is."""
    return next((why for pattern, why in NOT_HERE.items() if re.search(pattern, command)), "")


RUN = {command: page for page, command in reversed(commands()) if not reason(command)}
"""Commands, each once, and the first page that has it."""

SLOW = r"gpt:|llama:|-n [3-9]"
QUICK = sorted(command for command in RUN if not re.search(SLOW, command))


def shortened(command: str) -> str:
    """A training command that makes two steps; any other as it is."""
    trains = "nnmpi.train" in command and not re.search("--dry-run|--epochs|--steps", command)
    return f"{command} --steps 2" if trains else command


@pytest.mark.parametrize(
    ("page", "command"),
    [
        pytest.param(page, command, marks=() if command in QUICK[::5] else pytest.mark.long)
        for command, page in RUN.items()
    ],
)
def test_a_command_runs(page: str, command: str, tmp_path: Path) -> None:
    done = outcome_of(
        ["bash", "-c", f"cd {tmp_path} && {shortened(command)}"], environment({}), timeout=280
    )
    assert done.status == 0, done.out + done.err
