"""Loads a student's adapters.py with nnmpi's algorithms hidden, and tells what is wrong with it."""

import ast
import builtins
import importlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

from classroom.check import FaultError
from classroom.messages import Messages
from nnmpi.comm import MessageLengthError

OPEN = (
    "__future__",
    "bisect",
    "collections",
    "contextlib",
    "dataclasses",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "math",
    "numpy",
    "operator",
    "time",
    "typing",
)
"""The packages that any adapters may import."""

ON_SELF = ("self", "cls")


class HiddenError(ImportError):
    """Adapters use what they are meant to write, or what nobody should touch."""


def compiled(path: Path) -> CodeType:
    """The code of a file; raises HiddenError if it reads private attributes of others."""
    source = path.read_bytes()
    for node in ast.walk(ast.parse(source, str(path))):
        if isinstance(node, ast.Attribute) and _is_private(node):
            raise HiddenError(f"line {node.lineno} reads {ast.unparse(node)}, which is private")
    return compile(source, str(path), "exec")


def load(code: CodeType, allowed: Mapping[str, Sequence[str]]) -> ModuleType:
    """A new module of this code, which may import OPEN packages and the `allowed` names of others.

    Raises HiddenError at an import of anything else, now or when a function makes it.
    """

    def imported(
        name: str, globals: Any = None, locals: Any = None, names: Any = (), level: int = 0
    ) -> Any:
        if name.partition(".")[0] in OPEN and not level:
            return builtins.__import__(name, globals, locals, names)
        shown = {"Comm": Messages} if name == "nnmpi.comm" else {}
        for allowed_name in allowed.get(name, ()):
            shown[allowed_name] = getattr(importlib.import_module(name), allowed_name)
        for wanted in names or ("",):
            if wanted not in shown:
                raise HiddenError(_refusal(f"{name}.{wanted}".strip("."), allowed))
        return SimpleNamespace(**shown)

    module = sys.modules["adapters"] = ModuleType("adapters")
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": imported}
    exec(code, module.__dict__)
    return module


def _is_private(node: ast.Attribute) -> bool:
    of_self = isinstance(node.value, ast.Name) and node.value.id in ON_SELF
    return node.attr.startswith("_") and node.attr != "__init__" and not of_self


def _refusal(name: str, allowed: Mapping[str, Sequence[str]]) -> str:
    extra = "".join(f", {', '.join(names)} of {module}" for module, names in allowed.items())
    return f"import of {name} is refused: use NumPy, Comm of nnmpi.comm{extra}, and write the rest"


def told(error: BaseException, path: Path) -> str:
    """An error of a student's code in one line, with the lines of adapters.py that led to it."""
    cause: BaseException | None = error
    frames = _frames(error, path)
    while cause is not None and not frames:  # a plan that fails in the student's step
        cause = cause.__cause__
        frames = _frames(cause, path)
    if not frames and isinstance(error, (SyntaxError, HiddenError)):
        return f"{path.name} cannot be loaded: {error}"
    if isinstance(error, FaultError):
        return str(error)
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType) and not frames:
        return f"{path.name} has no {error.name}"
    if not frames and isinstance(error, MessageLengthError):  # of a collective of the check
        return f"ranks make different calls of comm, or with arrays of different lengths: {error}"
    if not frames:
        return f"the check itself failed: {type(error).__name__}: {error}"
    if isinstance(cause, NotImplementedError):
        return f"{cause if str(cause) else frames[-1].name} is not written yet"
    lines = "; ".join(f"line {f.lineno}, in {f.name}" for f in frames)
    return f"{type(error).__name__}: {error} ({path.name}, {lines})"


def _frames(error: BaseException | None, path: Path) -> list[traceback.FrameSummary]:
    trace = None if error is None else error.__traceback__
    return [f for f in traceback.extract_tb(trace) if f.filename == str(path)]
