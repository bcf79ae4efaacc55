"""Options of Config as flags of a command line."""

import argparse
from collections.abc import Collection
from typing import Any

from nnmpi.config import options


def add_flags(p: argparse.ArgumentParser, groups: Collection[str] = ()) -> None:
    """Adds a flag for each option, by groups: of these groups, or of all."""
    made: dict[str, Any] = {}
    for o in options():
        m = o.metadata
        if groups and m["group"] not in groups:
            continue
        if m["group"] not in made:
            made[m["group"]] = p.add_argument_group(m["group"])
        flags = [f"--{n.replace('_', '-')}" for n in (o.name, m["alias"]) if n is not None]
        is_shown = o.default is not None and o.default is not False and "default" not in m["help"]
        text = m["help"] + (f" (default {o.default})" if is_shown else "")
        text = text.replace("%", "%%")
        if m["kind"] is bool:
            action = argparse.BooleanOptionalAction
            made[m["group"]].add_argument(*flags, action=action, help=text)
            continue
        choices = None if m["custom"] else m["choices"] or None
        listed = choices and not any("," in str(choice) for choice in choices)
        metavar = None if listed else o.name.split("_")[-1].upper()
        made[m["group"]].add_argument(
            *flags, type=m["kind"], choices=choices, metavar=metavar, help=text
        )
