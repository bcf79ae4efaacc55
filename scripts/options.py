"""Marks in the pages of a built site where lines may break, for docs/site.css.

usage: python scripts/options.py build/site

An option stays on one line: browsers break --dp after its dashes. Long commands and messages in
blocks of text continue on the next line, so that nobody has to scroll; tables and drawings do not.
"""

import html
import re
import sys
from pathlib import Path

CODE = re.compile(r"<code>[^<]*</code>")
OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
BLOCK = re.compile(r'(<div class="language-text highlight">.*?<code>)(.*?)(</code>)', re.DOTALL)
TAG = re.compile(r"<[^>]*>")
COMMAND = re.compile(r"(\$ )?(\w+=\S+ )*(mpirun|python|nnmpi|sbatch|docker|export|kubectl) ")
COLUMNS = re.compile(r"\S  |[─-╿]")
"""What only lines of tables and drawings have: gaps, and characters that draw boxes."""
SHORT = 40  # characters that fit a phone


def wrapped(block: re.Match[str]) -> str:
    """A block of text whose commands and sentences may break; its lines are HTML."""
    lines = (f'<span class="wraps">{x}</span>' if wraps(x) else x for x in block[2].split("\n"))
    return block[1] + "\n".join(lines) + block[3]


def wraps(line: str) -> bool:
    """True for a long line that is a command or a sentence."""
    text = html.unescape(TAG.sub("", line))
    return len(text) > SHORT and bool(COMMAND.match(text) or not COLUMNS.search(text))


def main(site: Path) -> None:
    """Wraps options of inline code, and long lines of blocks, in a <span> each."""
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        text = CODE.sub(
            lambda code: OPTION.sub(r'<span class="option">\g<0></span>', code[0]), text
        )
        path.write_text(BLOCK.sub(wrapped, text), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
