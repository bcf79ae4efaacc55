"""README and docs: examples run as they stand, commands are understood, links lead somewhere."""

import contextvars
import re
import shlex
from pathlib import Path

import pytest
from helpers.mpijob import ROOT, run
from helpers.programs import python

from nnmpi import simulate, train

TOP = ROOT / "README.md", ROOT / "CONTRIBUTING.md"


def texts(paths):
    """Texts of files, by their path in the repository."""
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


PAGES = texts((*TOP, *sorted((ROOT / "docs").rglob("*.md"))))
LINKING = {**PAGES, **texts(sorted((ROOT / "benchmarks" / "measured").glob("*.md")))}
README = PAGES["README.md"]
PAGE_TEXT = "\n".join(PAGES.values())

EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE_TEXT, re.S | re.M)
FIRST_EXAMPLE = EXAMPLES[0]
SIMULATIONS = re.findall(r"^python -m nnmpi\.simulate (.*)$", PAGE_TEXT, re.M)
COMMANDS = re.findall(
    r"^(?:mpirun (?:--with-ft ulfm )?(?:--oversubscribe )?-n \d+ )?"
    r"python -m nnmpi\.train (.*?)(?: >.*)?$",
    re.sub(r"\\\n\s*", "", PAGE_TEXT),
    re.M,
)
OUTPUTS = re.findall(
    r"^```\n\$ python -m nnmpi\.((?:[^\n]*\\\n)*[^\n]*)\n(.*?)^```",
    "\n".join(text for page, text in PAGES.items() if page != "docs/first-hour.md"),
    re.S | re.M,
)
"""The commands in pages that are followed by what they print; test_first_hour.py has its own."""


# ---- examples


def test_the_first_example_learns(tmp_path):
    done = python("-c", FIRST_EXAMPLE, folder=tmp_path)
    assert done.status == 0, done.err
    accuracy = re.search(r"accuracy ([\d.]+)%", done.out)
    assert float(accuracy[1]) > 90
    assert (tmp_path / "xor.safetensors").exists()


@pytest.mark.parametrize("code", [e for e in EXAMPLES[1:] if not re.search(r"world\(\)|_WORLD", e)])
def test_the_other_examples_run(code, tmp_path, monkeypatch):
    """In a context of its own: some join a process group, and stay in it."""
    monkeypatch.chdir(tmp_path)
    contextvars.copy_context().run(exec, code, {"__name__": "__main__"})


def test_the_example_of_ranks_runs_on_two(tmp_path):
    """Its sums double x thrice: 1 + 2 = 3, 6, 12, 24."""
    ranks = next(code for code in EXAMPLES if "comm.ledger" in code)
    (tmp_path / "ranks.py").write_text(ranks)
    done = run(2, tmp_path / "ranks.py")
    assert done.status == 0, done.err
    assert "ucx" not in done.err.lower()  # Open MPI has much to say about what is not there
    sums = sorted(line.split(", ")[0] for line in done.out.splitlines())
    assert sums == ["rank 0: 24", "rank 1: 24"]


# ---- commands and links


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text("epochs = 2\n")
    assert train.config(shlex.split(command, comments=True)).batch_size >= 1


@pytest.mark.parametrize("command", SIMULATIONS)
def test_simulations_are_understood(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write a picture
    assert simulate.main(shlex.split(command)) == 0
    words = {
        "collective --algorithm tree": "textbook",
        "collective": "ring",
        "pipeline --compare": "activations held",
        "pipeline": "rank 3",
        "gemm": "where 2-D wins",
        "sync --parameters": "data parallelism",
        "sync": "asp",
        "layout --ranks 4 --nodes 4 --pp 2 --zero 2": "proved:",
        "layout": "bytes that a rank holds",
        "goodput": "closed form",
    }
    word = next(word for start, word in words.items() if command.startswith(start))
    assert word in capsys.readouterr().out


def test_commands_of_more_ranks_than_two_run_on_two_cores():
    """Open MPI refuses more ranks than cores, with a page of text, unless it is asked for them."""
    sources = [path for name in ("examples", "benchmarks") for path in (ROOT / name).glob("*.py")]
    text = "\n".join([PAGE_TEXT, *(path.read_text(encoding="utf-8") for path in sources)])
    jobs = re.findall(r"^(.*mpirun (.*?)-n (\d+) python.*)$", text, re.M)
    assert len(jobs) > 20
    assert [job for job, how, n in jobs if int(n) > 2 and "--oversubscribe" not in how] == []


@pytest.mark.parametrize(("command", "shown"), OUTPUTS)
def test_what_a_page_shows_is_what_is_printed(command, shown, tmp_path, monkeypatch, capsys):
    """Between lines of dots, every line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("chain.py").write_text(next(code for code in EXAMPLES if "CHAIN = " in code))
    name, *arguments = shlex.split(command.replace("\\\n", ""))
    assert {"train": train, "simulate": simulate}[name].main(arguments) == 0
    printed = capsys.readouterr().out
    for part in shown.split("...\n"):
        assert part in printed


@pytest.mark.all_add_ons
@pytest.mark.parametrize("page", LINKING)
def test_what_a_page_links_to_exists(page):
    """Files, and headings of this page and of others."""
    text, folder = prose(page), (ROOT / page).parent
    for link in re.findall(r"\]\(([^)]+)\)", text):
        path, _, heading = link.partition("#")
        found = (folder / path).resolve() if path else ROOT / page
        assert found.exists(), link
        assert not heading or heading in anchors(found.relative_to(ROOT).as_posix()), link
    named = re.findall(r"`((?:benchmarks|docs|scripts|tests|nnmpi)/[\w./-]+)`", text)
    assert [x for x in named if not (ROOT / x).exists()] == []


def prose(page: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", LINKING[page], flags=re.S | re.M)


def anchors(page: str) -> set[str]:
    """What leads to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}


def test_the_first_lines_say_what_does_not_equal_one_rank_and_which_gpu_has_run_it():
    first = "\n".join(README.splitlines()[:15])
    modes = {"asp", "ssp", "local", "gossip", "compress", "pipedream"}
    assert [mode for mode in modes if mode not in first] == []
    assert "synchronous" in first
    assert "One GPU, an H200, has run" in first


def test_the_index_has_every_page_and_the_readme_points_to_it():
    pages = {x.removeprefix("docs/") for x in PAGES if x.startswith("docs/")} - {"index.md"}
    assert {page for page in pages if f"]({page}" not in PAGES["docs/index.md"]} == set()
    read_on = README.partition("## Read on")[2].partition("**GPUs.**")[0]
    assert "(docs/index.md)" in read_on
    assert read_on.count("](") <= 10


def test_one_page_says_how_long_the_tests_take():
    duration = re.compile(r"scripts/test\b.{0,200}?\b(minutes?|min)\b", re.S)
    script = (ROOT / "scripts" / "test").read_text(encoding="utf-8").partition("set -e")[0]
    texts = {**PAGES, "scripts/test": script}
    found = [name for name, text in texts.items() if duration.search(text)]
    assert found == ["CONTRIBUTING.md"]
