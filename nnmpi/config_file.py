"""The options of a run from a TOML file."""

import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from nnmpi.config import Config, check_text, options
from nnmpi.quoting import shown

LONGEST = 1_000_000  # bytes of a file


def from_toml(path: str) -> Config:
    """The Config of a TOML file; its tables, if it has any, are the groups of options."""
    check_text("config", path)
    file = f"config {shown(path)}"
    try:
        with open(path, "rb") as stream:
            content = stream.read(LONGEST + 1)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"{file}: {reason}; name a TOML file that can be read") from None
    if len(content) > LONGEST:
        raise ValueError(f"{file} is longer than {LONGEST:,} bytes; name a file of options")
    try:
        return Config(**_by_name(tomllib.loads(content.decode())))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: it is not TOML: {shown(error)}") from None
    except RecursionError:
        raise ValueError(
            f"{file}: lists or tables in it are nested too deeply; no option has any"
        ) from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _by_name(table: dict[str, Any]) -> dict[str, Any]:
    """The values of a TOML table by the names of the fields."""
    names = {o.name: o.name for o in options()}
    names |= {o.metadata["alias"]: o.name for o in options() if o.metadata["alias"]}
    found: dict[str, Any] = {}
    spelt: dict[str, str] = {}
    for key, value in _flat(table):
        name = names.get(key.replace("-", "_"))
        if name is None:
            near = get_close_matches(key.replace("-", "_"), names, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{shown(key)} is not an option{hint}")
        if name in found:
            both = f" as {spelt[name]} and as {key}" if spelt[name] != key else ""
            raise ValueError(f"{name} is given twice{both}; keep one of them")
        found[name], spelt[name] = value, key
    return found


def _flat(table: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """The keys of a table and of the tables in it that are named after a group."""
    groups = {o.metadata["group"] for o in options()}
    for key, value in table.items():
        if isinstance(value, dict) and key in groups:
            yield from value.items()
        else:
            yield key, value
