"""Makes build/docs, which the site is built from: a copy of docs/, the executed notebooks as pages,
and a page of what `nnmpi train --combinations` prints.

usage: python scripts/lessons.py [--not-run | --keep]

--keep instead runs the lessons that are kept with their output, and stores it in their notebooks.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from copy import deepcopy
from html import escape
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat

from nnmpi.parallel import combinations

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS, FOLDER = ROOT / "examples" / "notebooks", ROOT / "build" / "docs"
SECONDS = 300  # for one cell
KEPT = ("1-all-reduce",)
"""The lessons that are kept with their output, which is the same in each run: a forge shows it."""

MEASURED = re.compile(r"\[([^]]+)\]\(\.\./(benchmarks/measured/[\w-]+\.md)[^)]*\)")
"""Links to tables that are no pages of the site, which names their files instead."""

SYMBOLS = {
    **{name: f"<mi>{name}</mi>" for name in ("log", "max", "min", "sin")},
    **{name: f"<mi>&{name};</mi>" for name in ("alpha", "beta", "gamma", "eta", "tau", "pi")},
    **{name: f"<mo>&{name};</mo>" for name in ("sum", "times", "approx", "lceil", "rceil", "top")},
    "infty": "<mi>&infin;</mi>",
    "cdot": "<mo>&sdot;</mo>",
    "dots": "<mo>&hellip;</mo>",
    "%": "<mo>%</mo>",
    **{name: f'<mspace width="{ems}em"/>' for name, ems in
       {",": 0.2, ";": 0.3, "quad": 1, "qquad": 2}.items()},
    **dict.fromkeys(("left", "right"), ""),
}  # fmt: skip
"""The TeX commands used in lessons as MathML, which browsers draw without a script."""
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$", re.S)
TOKEN = re.compile(r"\\text\{[^}]*\}|\\(?:[a-zA-Z]+|.)|\d+(?:\.\d+)?|\S")
SCRIPTS = {"_": "msub", "^": "msup", "_^": "msubsup", "^_": "msubsup"}


def mathml(formula: re.Match[str]) -> str:
    """A TeX formula between dollars as MathML."""
    block, inline = formula.groups()
    row = _row(TOKEN.findall(block or inline))
    if block:
        return f'<math display="block">{row}</math>'
    return f"<span><math>{row}</math></span>"  # Markdown takes a line that begins with math as HTML


def _row(tokens: list[str]) -> str:
    """The MathML of the tokens up to the end of a group; removes these tokens from the list."""
    parts = []
    while tokens and (token := tokens.pop(0)) != "}":
        if token in "_^":
            base, *scripts = parts.pop(), _atom(tokens)
            if tokens and tokens[0] in "_^":
                token += tokens.pop(0)
                scripts.append(_atom(tokens))
            tag = "munder" if "&sum;" in base else SCRIPTS[token]
            parts.append(
                f"<{tag}>{base}{''.join(scripts[:: 1 if token[0] == '_' else -1])}</{tag}>"
            )
        else:
            tokens.insert(0, token)
            parts.append(_atom(tokens))
    return f"<mrow>{''.join(parts)}</mrow>"


def _atom(tokens: list[str]) -> str:
    """The next symbol, number, fraction or group."""
    token = tokens.pop(0)
    if token == "{":
        return _row(tokens)
    if token == r"\frac":
        if tokens[0].isdigit():  # \frac12
            tokens[:1] = tokens[0]
        return f"<mfrac>{_atom(tokens)}{_atom(tokens)}</mfrac>"
    if token.startswith(r"\text{"):
        return f"<mtext>{escape(token[6:-1]).replace(' ', '&nbsp;')}</mtext>"
    if token.startswith("\\"):
        return SYMBOLS[token[1:]]
    tag = "mn" if token[0].isdigit() else "mi" if token.isalpha() else "mo"
    return f"<{tag}>{escape(token).replace('-', '&minus;')}</{tag}>"


def page(notebook: Any, name: str) -> tuple[str, dict[str, str]]:
    """A lesson in Markdown, and its pictures by file name."""
    pictures, parts = dict[str, str](), list[str]()
    for is_solution, cells in groupby(notebook.cells, _is_solution):
        for cell in cells:
            text = "\n\n".join(_parts(cell, name, pictures))
            if is_solution and text.startswith("### "):
                parts.append(f'??? note "{text.removeprefix("### ")}"')
            else:
                parts.append(re.sub(r"^(?=.)", " " * 4 * is_solution, text, flags=re.M))
    title, *rest = parts[0].split("\n", 1)
    source = f"The notebook `{(NOTEBOOKS / name).relative_to(ROOT)}.ipynb` as a page."
    return "\n\n".join([title, source, *rest, *parts[1:], ""]), pictures


def _is_solution(cell: Any) -> bool:
    return "solution" in cell.metadata.get("tags", ())


def _parts(cell: Any, name: str, pictures: dict[str, str]) -> Iterator[str]:
    """The source of a cell, and what it printed and drew, in Markdown."""
    if cell.cell_type == "markdown":
        yield FORMULA.sub(mathml, cell.source)
        return
    yield f"```python\n{cell.source}\n```"
    printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    if printed:
        yield f"```text\n{printed.rstrip()}\n```"
    for output in cell.outputs:
        data = output.get("data", {})
        if "image/svg+xml" in data:
            file = f"{name}-{len(pictures) + 1}.svg"
            pictures[file] = data["image/svg+xml"]
            words = re.search(r"<text[^>]*>([^<]+)", data["image/svg+xml"])
            yield f"![{words[1] if words else 'picture'}]({file})"
        elif "text/plain" in data:
            yield f"```text\n{data['text/plain']}\n```"


def run(notebook: Any) -> None:
    """Runs a notebook, and stores what its cells print and draw."""
    from nbclient import NotebookClient

    with TemporaryDirectory() as folder:
        os.environ["IPYTHONDIR"] = folder  # no settings of the user
        where = {"metadata": {"path": folder}}
        NotebookClient(
            notebook, timeout=SECONDS, kernel_name="python3", record_timing=False, resources=where
        ).execute()


def keep() -> None:
    """Runs the lessons that are kept with their output, and stores it in their notebooks."""
    for name in KEPT:
        path = NOTEBOOKS / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        metadata = deepcopy(notebook.metadata)
        run(notebook)
        notebook.metadata = metadata  # without the version of Python
        path.write_text(f"{nbformat.writes(notebook)}\n", encoding="utf-8")


def main(is_run: bool) -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.copytree(ROOT / "docs", FOLDER)
    lessons = FOLDER / "lessons"
    lessons.mkdir()
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        if is_run:
            print(f"running {path.name}", flush=True)
            run(notebook)
        text, pictures = page(notebook, path.stem)
        for file, content in {f"{path.stem}.md": text, **pictures}.items():
            (lessons / file).write_text(content, encoding="utf-8")
    index = (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
    (lessons / "index.md").write_text(index.replace(".ipynb)", ".md)"), encoding="utf-8")
    (FOLDER / "course").mkdir()
    for path in ROOT.glob("course/*/README.md"):
        shutil.copy(path, FOLDER / "course" / f"{path.parent.name}.md")
    (FOLDER / "combinations.md").write_text(combinations.page(), encoding="utf-8")
    shutil.copy(ROOT / "course" / "wrong-solutions.md", FOLDER / "course")
    for path in FOLDER.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        text = text.replace("../examples/notebooks/README.md", "lessons/index.md")
        text = re.sub(r"\.\./examples/notebooks/([\w-]+)\.ipynb", r"lessons/\1.md", text)
        text = re.sub(r"\.\./course/([\w-]+)(?:/README)?\.md", r"course/\1.md", text)
        text = MEASURED.sub(r"\1 (`\2`)", text)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--keep"]:
        keep()
    else:
        main(sys.argv[1:] != ["--not-run"])
