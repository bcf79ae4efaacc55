"""The tables of options that cannot be combined (`nnmpi train --combinations`), made from
`FEATURES` in `refusals.py`, by which the command line rejects options."""

from collections.abc import Iterator

from nnmpi.parallel.refusals import FEATURES, REQUIREMENTS

HEAD = """# What cannot be combined

A run with options that exclude each other ends before anything is built, with the reason and a
remedy. Names are those of `Config`: `micro_batches` is `--micro-batches` on the command line. Some
names stand for other options:
"""


def page() -> str:
    """Returns the tables of options that cannot be combined, as one Markdown text."""
    covers = [f"- `{f.name}`: {f.covers}" for f in FEATURES if f.covers]
    return "\n".join([HEAD, *covers, *_tables()])


def _tables() -> Iterator[str]:
    """Yields lines of all tables of options that cannot be combined."""
    yield from ("", "An option cannot be combined with one that breaks what it needs.", "")
    yield "| it needs | options that need it | not given beside |"
    yield "|-|-|-|"
    for needed in dict.fromkeys(p for f in FEATURES for p in f.relies_on):
        relying = ", ".join(f"`{f.name}`" for f in FEATURES if needed in f.relies_on)
        broken = "; ".join(
            f"`{f.name}`: {f.breaks[needed]}" for f in FEATURES if needed in f.breaks
        )
        yield f"| {needed.words} | {relying} | {broken} |"
    yield from ("", "These pairs exclude each other for other reasons.", "")
    yield "| option | cannot be combined with | because |"
    yield "|-|-|-|"
    names = {f.name for f in FEATURES}  # without those of add-ons that are left out
    for feature in FEATURES:
        for beside, reason in feature.conflicts.items():
            if beside in names:
                yield f"| `{feature.name}` | `{beside}` | {reason} |"
    yield from ("", "## Options that need another one", "")
    yield "| option | needs | because |"
    yield "|-|-|-|"
    for feature, other, reason in REQUIREMENTS:
        yield f"| `{feature.name}` | `{other}` | {reason} |"
