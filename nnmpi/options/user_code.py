"""Imports objects that users name as package.module:NAME."""

import importlib
import traceback
from typing import Any

from nnmpi.options.quoting import quoted, shown


def is_named(spec: str) -> bool:
    """True if a text has the form package.module:NAME."""
    module, _, name = spec.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), name))


def imported(spec: str, option: str) -> Any:
    """Imports the object `spec` names; a ValueError names the option."""
    module_name, _, name = spec.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{option} {quoted(spec)}: no module named {quoted(error.name)}; "
            "run in its directory or set PYTHONPATH"
        ) from None
    except (Exception, SystemExit) as error:  # code of users may do anything when imported
        raise ValueError(
            f"{option} {quoted(spec)}: cannot import {shown(module_name)}: {reason_of(error)}"
        ) from error
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise ValueError(
            f"{option} {quoted(spec)}: module {shown(module_name)} has no {quoted(name)}; "
            f"it has {shown(', '.join(public[:8]) or 'no names')}"
        )
    return getattr(module, name)


def reason_of(error: BaseException) -> str:
    """Returns an error in one line, with the file and line of user code that raised it."""
    reason = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)[1:]
    if isinstance(error, SyntaxError) or not frames:  # a SyntaxError's text names the line itself
        return reason
    return f"{reason} ({frames[-1].filename}, line {frames[-1].lineno})"
