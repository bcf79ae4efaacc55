"""Number: stands for a Python number in a log of calls on arrays without data, so that the calls
can be executed with other values of it.

    numbers = Numbers()
    lr = numbers.new(0.1)           a Number, of the type float
    x * (lr / 2)                    logs the call multiply(x, n), with a Number n
    numbers.values([0.3])           the values of lr and n: [0.3, 0.15]

Python's arithmetic with a Number gives a Number, with an array an array without data. All that
would read its value, such as `if` or `float`, raises NumbersReadError.
"""

import dis
import operator
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

from nnmpi.arrays.meta.array import MetaArray
from nnmpi.arrays.meta.log import UnlikeError
from nnmpi.arrays.meta.shapes import refuse


class Numbers:
    """The Numbers of a log, those that are given and then those that the code computes of them;
    `examples` are their values while it is made."""

    def __init__(self) -> None:
        self._computed = list[tuple[Callable[..., Any], Sequence[Any], type]]()
        self.examples = list[Any]()

    def new(self, example: Any) -> "Number":
        """Makes a Number whose value differs from execution to execution; `example` is one."""
        self.examples.append(example)
        return Number(self, len(self.examples) - 1, example)

    def computed(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Returns function(*operands), for operands of which some are Numbers, as a Number;
        NotImplemented if others are no Python numbers."""
        if not all(type(x) in (Number, int, float, bool) for x in operands):
            return NotImplemented
        example = function(*(getattr(x, "example", x) for x in operands))
        self._computed.append((function, operands, type(example)))
        return self.new(example)

    def values(self, given: Sequence[Any]) -> Sequence[Any]:
        """Returns the values of all Numbers, if the given ones have these values; raises
        UnlikeError if one that is computed has another type than in the log."""
        values = [*given]
        for function, operands, kind in self._computed:
            value = function(*[values[x.index] if type(x) is Number else x for x in operands])
            if type(value) is not kind:
                raise UnlikeError
            values.append(value)
        return values


def _operation_of(frame: FrameType) -> str:
    """Returns the name of the bytecode operation that a frame is at."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]]


def _operator(function: Callable[..., Any], is_reflected: bool = False) -> Callable[..., Any]:
    def method(self: "Number", *others: Any) -> Any:
        caller = sys._getframe(1)
        if function is operator.add and _operation_of(caller) != "BINARY_OP":
            refuse("sum() of numbers")  # from Python 3.12 on it gives other bits than additions
        operands = (*others, self) if is_reflected else (self, *others)
        return self._numbers.computed(function, *operands)

    return method


class Number:
    """A Python number without a known value (see this module). `isinstance` takes it for a number
    of its type.

    index     its place among the values of its Numbers
    example   a value that gives the type of results
    """

    __slots__ = ("_numbers", "example", "index")

    def __init__(self, numbers: Numbers, index: int, example: Any) -> None:
        self._numbers, self.index, self.example = numbers, index, example

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.example)

    __array_ufunc__ = MetaArray.__array_ufunc__  # which looks at the operands alone
    __add__, __radd__ = _operator(operator.add), _operator(operator.add, True)
    __sub__, __rsub__ = _operator(operator.sub), _operator(operator.sub, True)
    __mul__, __rmul__ = _operator(operator.mul), _operator(operator.mul, True)
    __truediv__, __rtruediv__ = _operator(operator.truediv), _operator(operator.truediv, True)
    __floordiv__, __rfloordiv__ = _operator(operator.floordiv), _operator(operator.floordiv, True)
    __mod__, __rmod__ = _operator(operator.mod), _operator(operator.mod, True)
    __pow__, __rpow__ = _operator(operator.pow), _operator(operator.pow, True)
    __neg__, __pos__ = _operator(operator.neg), _operator(operator.pos)
    __abs__ = _operator(operator.abs)

    # ---- what asks for the value

    def _read(self, *args: Any, **options: Any) -> NoReturn:
        """Raises NumbersReadError; replaces the methods that read the value."""
        refuse("reading a number")

    __bool__ = __float__ = __int__ = __index__ = __complex__ = __hash__ = __array__ = _read
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _read
    __round__ = __trunc__ = __floor__ = __ceil__ = __divmod__ = __rdivmod__ = _read
    __str__ = __repr__ = __format__ = _read

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(self.example, name):  # such as is_integer
            self._read()
        raise AttributeError(name)


def filled(part: Any, values: Sequence[Any]) -> Any:
    """Returns a part of a logged call, such as its arguments, with `values` in place of Numbers."""
    kind = type(part)
    if kind is Number:
        return values[part.index]
    if kind is dict:
        return {name: filled(item, values) for name, item in part.items()}
    if kind in (tuple, list) or hasattr(part, "_fields"):
        items = [filled(item, values) for item in part]
        return kind(*items) if hasattr(part, "_fields") else kind(items)
    return part
