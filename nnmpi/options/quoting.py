"""Text from users, as messages show it: cut where it is long, and without control characters.

An escape code in a file name or a TOML value would otherwise reach the terminal.
"""

from collections.abc import Iterable
from difflib import get_close_matches

MOST = 300  # characters of one text


def printable(text: str) -> str:
    """The text with every character that does not print as its escape: ESC becomes \\x1b."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(text: object, most: int = MOST) -> str:
    """A path, a name or a message without quotes, of about `most` characters."""
    return printable(_cut(str(text), most))


def quoted(value: object) -> str:
    """The repr of a value, which for a list or a table may be endless: of those only the type."""
    if isinstance(value, str):
        return repr(_cut(value, MOST))
    if isinstance(value, list | dict):
        return f"of type {type(value).__name__}"
    return shown(repr(value))


def _cut(text: str, most: int) -> str:
    """The beginning and the end of a long text."""
    if len(text) <= most:
        return text
    head, tail = most * 3 // 5, most // 5
    return f"{text[:head]}...({len(text):,} characters)...{text[-tail:]}"


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the known name that is nearest to a misspelt one, or made of its initials, as lr of
    learning_rate; may be empty."""
    names = [*known]
    initials = "".join(part[0] for part in word.strip("-").replace("-", "_").split("_") if part)
    short = [name for name in names if name.strip("-") == initials]
    near = short or get_close_matches(word, names, 1, 0.7)
    return f"; did you mean {near[0]}?" if near else ""
