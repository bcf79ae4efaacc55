"""Quotes users' texts in messages: shortened, and without control characters.

An escape code in a file name or a TOML value would otherwise reach the terminal.
"""

from collections.abc import Iterable
from difflib import get_close_matches

MOST_CHARACTERS = 300  # characters of a text in a message


def printable(text: str) -> str:
    """Escapes every unprintable character of a text: ESC becomes \\x1b."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(text: object, most: int = MOST_CHARACTERS) -> str:
    """Returns a text for messages, unquoted, of about `most` characters."""
    return printable(_cut(str(text), most))


def quoted(value: object) -> str:
    """Returns a value's repr for a message; of lists and tables only the type."""
    if isinstance(value, str):
        return repr(_cut(value, MOST_CHARACTERS))
    if isinstance(value, list | dict):
        return f"of type {type(value).__name__}"
    return shown(repr(value))


def _cut(text: str, most: int) -> str:
    """Shortens a text to `most` characters by leaving out its middle."""
    if len(text) <= most:
        return text
    head, tail = most * 3 // 5, most // 5
    return f"{text[:head]}...({len(text):,} characters)...{text[-tail:]}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns the hint "; did you mean NAME?" with the known name nearest to a misspelt word, or
    ""; initials count as near: learning_rate gives lr."""
    names = [*known]
    initials = "".join(part[0] for part in word.strip("-").replace("-", "_").split("_") if part)
    short = [name for name in names if name.strip("-") == initials]
    near = short or get_close_matches(word, names, 1, 0.7)
    return f"; did you mean {near[0]}?" if near else ""
