"""The bytecode of users' functions, as a list of what they read and write."""

import dis
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple


class Operation(NamedTuple):
    """An operation of bytecode, and the attributes that are read of its result in turn:
    `self.model.scale` is LOAD_FAST of self with model and scale.

    name         its name in Python's `dis`; "" stands for a value that may come from several places
    argument     the argument as `dis` describes it, such as the name of a variable
    """

    name: str
    argument: Any
    attributes: list[str]

    @property
    def variables(self) -> tuple[Any, ...]:
        """The variables that the operation uses; two if it stands for two operations."""
        are_two = isinstance(self.argument, tuple) and "FAST" in self.name  # else a constant
        return self.argument if are_two else (self.argument,)


def operations_of(code: CodeType) -> Iterator[Operation]:
    """Yields the operations of a code object, without those of functions defined in it."""
    last, is_target = Operation("", None, []), False
    for step in dis.get_instructions(code):
        is_target |= step.is_jump_target
        if step.opname == "EXTENDED_ARG":
            continue
        is_read = step.opname in ("LOAD_ATTR", "LOAD_METHOD")
        if not is_read or is_target:
            yield last
            last = Operation("" if is_read else step.opname, step.argval, [])
        if is_read or "SUPER_ATTR" in step.opname:
            last.attributes.append(step.argval)
        is_target = False
    yield last


def codes_in(code: CodeType) -> list[CodeType]:
    """Returns the code objects of the functions that are defined in a function."""
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]
