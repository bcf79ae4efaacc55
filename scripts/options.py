"""Keeps options on one line in the pages of a built site: browsers break --dp after its dashes.

usage: python scripts/options.py build/site
"""

import re
import sys
from pathlib import Path

CODE = re.compile(r"<code>[^<]*</code>")
OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")


def main(site: Path) -> None:
    """Wraps each option in inline code in a <span>, which docs/site.css does not let break."""
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        text = CODE.sub(
            lambda code: OPTION.sub(r'<span class="option">\g<0></span>', code[0]), text
        )
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
