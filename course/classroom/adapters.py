"""Loads a student's adapters.py with nnmpi's algorithms hidden, and tells what is wrong with it."""

import ast
import builtins
import dataclasses
import importlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

from classroom.comm import Messages
from classroom.restricted import (
    ADAPTERS,
    HiddenError,
    is_open,
    private_reads,
    run_generated,
    shown_builtins,
    shown_module,
)


def compiled(source: bytes, path: Path) -> CodeType:
    """The code of a source; raises HiddenError if it reads private attributes of others, and
    SyntaxError if Python cannot read it."""
    try:
        tree = ast.parse(source, str(path))
        for read in private_reads(tree):
            raise HiddenError(f"{read}, which is private")
        return compile(tree, str(path), "exec")
    except (MemoryError, RecursionError):
        raise SyntaxError("it is nested too deeply for Python") from None
    except ValueError as error:
        raise SyntaxError(str(error)) from None


def load(code: CodeType, allowed: Mapping[str, Sequence[str]]) -> ModuleType:
    """A new module of this code, which may import open packages and the `allowed` names of others.

    Raises HiddenError at an import of anything else, now or when a function makes it.
    """

    def imported(
        name: str, globals: Any = None, locals: Any = None, names: Any = (), level: int = 0
    ) -> Any:
        if name.startswith("numpy.") and isinstance(names, list):  # by NumPy, from a call in C
            return builtins.__import__(name, None, None, names)
        if is_open(name) and not level:
            return shown_module(builtins.__import__(name, None, None, names or ()))
        shown = {"Comm": Messages} if name == "nnmpi.comm" else {}
        for allowed_name in allowed.get(name, ()):
            shown[allowed_name] = getattr(importlib.import_module(name), allowed_name)
        for wanted in names or ("",):
            if wanted not in shown:
                raise HiddenError(_refusal(f"{name}.{wanted}".strip("."), allowed))
        return SimpleNamespace(**shown)

    vars(dataclasses)["exec"] = run_generated  # in the place of the built-in function
    module = sys.modules[ADAPTERS] = ModuleType(ADAPTERS)
    module.__dict__["__builtins__"] = shown_builtins(imported)
    exec(code, module.__dict__)
    return module


def _refusal(name: str, allowed: Mapping[str, Sequence[str]]) -> str:
    extra = "".join(f", {', '.join(names)} of {module}" for module, names in allowed.items())
    return f"import of {name} is refused: use NumPy, Comm of nnmpi.comm{extra}, and write the rest"


def told(error: BaseException, path: Path) -> tuple[str, str]:
    """An error of a student's code in one line, and the lines of adapters.py that led to it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    if not frames and isinstance(error, (SyntaxError, HiddenError)):
        return str(error), ""
    if isinstance(error, AttributeError) and not frames:
        owner = "" if isinstance(error.obj, ModuleType) else f"a {type(error.obj).__name__} of "
        return f"{owner}{path.name} has no {error.name}", ""
    if isinstance(error, NotImplementedError) and frames:
        return f"{error if str(error) else frames[-1].name} is not written yet", ""
    lines = "; ".join(f"line {f.lineno}, in {f.name}" for f in frames[-8:])
    return f"{type(error).__name__}: {error}", f"({path.name}, {lines})" if frames else ""
