"""The operations of bytecode that a recorded pass or step may not contain, since a replay would not
repeat them: they set what exists outside of the function, import, or define classes."""

from typing import Any

from nnmpi.nn.bytecode import Operation
from nnmpi.nn.users_code import UnfitError

SETTABLE = {"data", "grad"}
"""Attributes of parameters that code may set."""

REFUSED = {
    "DELETE_ATTR", "DELETE_GLOBAL", "DELETE_NAME", "IMPORT_NAME", "LOAD_BUILD_CLASS", "LOAD_NAME",
    "MATCH_CLASS", "MATCH_KEYS", "STORE_GLOBAL", "STORE_NAME",
}  # fmt: skip
"""Bytecode operations that are refused wherever they are."""

VERBS = {
    "LOAD_BUILD_CLASS": "defines a class",
    "IMPORT_NAME": "imports",
    "MATCH_CLASS": "matches attributes",
    "MATCH_KEYS": "matches keys",
}


def check_operation(
    operation: Operation, known: Any, outer: set[str], name: str, of_module: bool
) -> None:
    """Raises UnfitError for a bytecode operation that a replay would not repeat, such as setting a
    variable outside of the function `name`.

    known       the variables whose values are known
    outer       the variables of closures
    of_module   True for methods of modules: recording notices which attributes they set
    """
    kind, variables = operation.name, operation.variables
    sets = kind.startswith(("STORE_", "DELETE_"))
    outside = sets and kind.endswith("DEREF") and not outer.isdisjoint(variables)
    kept = kind == "STORE_ATTR" and not of_module and not SETTABLE.issuperset(variables)
    stored = variables[:1] if "LOAD" in kind else variables
    moved = sets and "FAST" in kind and not known.keys().isdisjoint(stored)
    if outside or kept or moved or kind in REFUSED:
        raise UnfitError(
            f"{name} {VERBS.get(kind, 'sets')} {variables[0] or ''}".rstrip()
            + ", which replays would not do: do it outside of the step"
        )
