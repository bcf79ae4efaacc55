"""StepCode: finds in the bytecode of a compiled training step (`nnmpi.compile`) what it reads
besides its arguments, to notice when a recorded step is no longer valid.

compared   variables of the program and of closures, attributes of objects and classes, and
           functions: they must be the same objects in each call
followed   the code of users' functions and methods; Python modules, users' objects and optimizers,
           of which the step may only use attributes, as in `np.exp`, `self.model` and
           `optimizer.step`, since other uses would not show which attributes are read
refused    lists, dicts, arrays; code that sets a variable or an attribute; functions that
           `step_values.py` does not list
"""

import builtins
import dis
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter, is_
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from nnmpi.autograd import Tensor, no_grad
from nnmpi.autograd.torch_names import METHODS_ON_USE
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.registries import buffers_of, read_attributes
from nnmpi.nn.users_code import UnfitError, UsersCode, compared, contents, is_own, is_plain
from nnmpi.optim.optimizer import Optimizer
from nnmpi.optim.step_values import FUNCTIONS, MISSING, is_known, is_namespace, kind_of

UNSEEN = {
    "base", "ctypes", "flags", "imag", "load_state_dict", "passes", "seed", "setflags",
    "state_dict",
}  # fmt: skip
"""Attributes by which a step could read or change state without notice."""

NAMED_TYPES = (
    Tensor,
    Module,
    np.ndarray,
    np.ufunc,
    str,
    complex,
    tuple,
    list,
    dict,
    set,
    slice,
    range,
)
PUBLIC = {name for kind in NAMED_TYPES for name in dir(kind) if name[0] != "_"} - UNSEEN
PUBLIC |= {*METHODS_ON_USE}
"""Attributes that a step may read of a value of any type."""

USED = ("zero_grad", "step")
"""Methods of optimizers that a step may use."""

SETTABLE = {"data", "grad"}
"""Attributes of parameters that a step may set."""

REFUSED = {
    "DELETE_ATTR", "DELETE_GLOBAL", "DELETE_NAME", "IMPORT_NAME", "LOAD_BUILD_CLASS", "LOAD_NAME",
    "MATCH_CLASS", "MATCH_KEYS", "STORE_GLOBAL", "STORE_NAME",
}  # fmt: skip
"""Bytecode operations that are refused, since a replay does not repeat them."""

_DECORATED = no_grad()(len).__code__
"""The code of functions that `no_grad()` or another context manager decorates."""

_CHANGES = attrgetter("_changes")

VERBS = {
    "LOAD_BUILD_CLASS": "defines a class",
    "IMPORT_NAME": "imports",
    "MATCH_CLASS": "matches attributes",
    "MATCH_KEYS": "matches keys",
}

PLAIN_DESCRIPTORS = (FunctionType, property, classmethod, staticmethod)

FREE = object()
"""Stands for a value of which the step may read any attribute in PUBLIC."""


class StepCode:
    """Finds, in the bytecode of a compiled training step (`nnmpi.compile`) and of the functions
    that it calls, every object on which the step depends; raises UnfitError if one could change
    unnoticed. Before a replay, `is_same` tells if all variables still refer to the same objects.

    modules      the modules that the step calls; `all_modules` also has their submodules
    optimizers   all optimizers that it uses
    parameters   all parameters that it uses; `loose` has those that are in no module
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.modules, self.optimizers = list[Module](), list[Optimizer]()
        self._parameters, self._functions = list[Parameter](), list[FunctionType]()
        self._seen, self._names = set[Any](), dict[str, str]()  # names, and where they are read
        self._variables, self._cells = list[tuple[Mapping[str, Any], str]](), list[Any]()
        self._owners = list[Any]()
        name = getattr(function, "__name__", "the step")
        if not isinstance(function, FunctionType | MethodType | partial):
            raise UnfitError(f"it takes the function of a whole step, and not {kind_of(function)}")
        self._take(function, name)
        of_modules = dict.fromkeys(p for m in self.modules for p in m.parameters())
        loose = (*self._parameters, *(p for o in self.optimizers for p in o.parameters))
        self.loose = [*dict.fromkeys(p for p in loose if p not in of_modules)]
        self.parameters = [*of_modules, *self.loose]
        self.all_modules = [*dict.fromkeys(m for root in self.modules for m in root.modules())]
        self._check_names()
        self._of_modules = UsersCode(self.all_modules, self._names)
        if any(m._before_user_call is not None for m in self.all_modules):
            raise UnfitError("the step uses a model that a Trainer has cut")
        # they are drawn now, as lists hold their memory
        if any(not isinstance(p.operand, np.ndarray) for p in self.parameters):
            raise UnfitError("the step computes on a GPU")
        self._with_buffers = [m for m in self.all_modules if m._buffers]
        self._objects, self._changes = self._read(), [*map(_CHANGES, self.all_modules)]
        compared_objects = map(compared, self._objects)
        self.state = *self._changes, *self._of_modules.state(), *compared_objects

    def is_same(self) -> bool:
        """True if all variables that the step reads refer to the same objects as when it was
        recorded, and no module has changed, so that the recording is still valid."""
        read = self._read()
        return (
            self._changes == [*map(_CHANGES, self.all_modules)]
            and self._of_modules.is_same()
            and len(read) == len(self._objects)
            and all(map(is_, read, self._objects))
        )

    def has_same_parts(self, other: "StepCode") -> bool:
        """True if another StepCode has the same modules, parameters and optimizers."""
        parts, others = (
            [*code.all_modules, *code.parameters, *code.optimizers] for code in (self, other)
        )
        return len(parts) == len(others) and all(map(is_, parts, others))

    def _read(self) -> list[Any]:
        values = [variables.get(name, MISSING) for variables, name in self._variables]
        values += map(contents, self._cells)
        values += map(type, self._owners)
        values += (t.operand for _, _, t in buffers_of(self._with_buffers))
        for function in self._functions:
            values += function.__code__, function.__defaults__
            values += (function.__kwdefaults__ or {}).values()
        return values

    # ---- values

    def _take(self, value: Any, name: str) -> Any:
        """Registers `value`, which the step reads, and everything that the value's own code uses,
        so that `is_same` notices later changes. `name` describes where it was read in error
        messages, such as "model in train_step".

        Raises UnfitError if the value could change unnoticed. Returns a Python module or a user's
        object itself, since the step may then only read its attributes, and the constant FREE (any
        use is allowed) for any other value.
        """
        if isinstance(value, Module):
            self.modules += [value] * (value not in self.modules)
        elif isinstance(value, Optimizer) and is_own(value):
            if value not in self.optimizers:
                self.optimizers.append(value)
                self._variables += [(vars(value), of) for of in (*USED, "parameters")]
        elif isinstance(value, Parameter):
            self._parameters.append(value)
        elif isinstance(value, MethodType):
            self._take_method(value, name)
        elif isinstance(value, partial) and not vars(value):
            self._variables += [(value.keywords, keyword) for keyword in value.keywords]
            self._take_items((value.func, *value.args, *value.keywords.values()), name)
        elif isinstance(value, FunctionType) and value.__code__ is _DECORATED:
            cells = dict(zip(_DECORATED.co_freevars, value.__closure__ or (), strict=True))
            if not isinstance(contents(cells["self"]), no_grad):
                raise UnfitError(f"{name} is decorated with {kind_of(contents(cells['self']))}")
            self._as_free(self._take(contents(cells["func"]), name), name)
        elif isinstance(value, FunctionType) and not (is_own(value) or value in FUNCTIONS):
            self._follow(value, name, FREE)
        elif type(value) in (tuple, frozenset):
            self._take_items(value, name)
        elif is_plain(value) or is_known(value):
            return FREE
        elif isinstance(value, ModuleType) or is_namespace(value):
            return value
        else:
            if isinstance(value, BuiltinFunctionType | FunctionType | type):
                raise UnfitError(f"{name} is no function or class that a compiled step may use")
            raise UnfitError(
                f"{name} is {kind_of(value)}, which may change without notice; pass what the step "
                "reads of it as an argument, or use it outside of the step"
            )
        return FREE

    def _take_items(self, values: Any, name: str) -> None:
        for value in values:
            self._as_free(self._take(value, name), name)

    def _take_method(self, method: MethodType, name: str) -> None:
        function, owner = method.__func__, method.__self__
        taken = self._take(owner, name)
        if isinstance(owner, Module | Optimizer):
            self._note_name(function.__name__, name)
        elif isinstance(function, FunctionType):
            self._follow(function, name, taken)
        else:
            raise UnfitError(f"{name} is a method of {kind_of(owner)}")

    def _as_free(self, value: Any, name: str) -> None:
        """Raises UnfitError for a Python module or a user's object (any `value` but FREE) that the
        step uses in another way than by reading its attributes, such as by passing it to a
        function: only the attributes that the step names are compared before a replay. `name` is
        for the message."""
        if value is not FREE:
            raise UnfitError(
                f"{name} is {kind_of(value)}, used otherwise than by its attributes: replays would "
                "not notice what is read of it, or changed"
            )

    def _attribute(self, owner: Any, attribute: str, name: str, code: str) -> Any:
        """Registers the attribute `attribute` that the step reads of the object `owner`, so that
        later changes are noticed; returns FREE, or the value if it is an object of which only
        attributes may be read (as `_take` does). In error messages, `name` stands for the object,
        and `code` is the name of the function that reads it."""
        if owner is FREE:
            return self._note_name(attribute, code)
        where = f"{name}.{attribute} in {code}"
        if isinstance(owner, ModuleType):
            self._variables.append((vars(owner), attribute))
            return self._take(getattr(owner, attribute, MISSING), where)
        if attribute[:2] == "__":
            raise UnfitError(f"{code} uses {attribute}, by which it may read what changes")
        self._owners.append(owner)
        is_class = isinstance(owner, type)
        classes = (owner if is_class else type(owner)).__mro__[:-1]
        places = [*([] if is_class else [vars(owner)]), *map(vars, classes)]
        self._variables += [(place, attribute) for place in places]
        of_class = next((vars(c)[attribute] for c in classes if attribute in vars(c)), MISSING)
        if hasattr(type(of_class), "__get__") and not isinstance(of_class, PLAIN_DESCRIPTORS):
            raise UnfitError(
                f"{where} is a descriptor, {kind_of(of_class)}, which may read anything"
            )
        value = of_class if isinstance(of_class, property) else places[0].get(attribute, of_class)
        if isinstance(value, property):
            self._take_function(value.fget, where, owner)
        elif isinstance(value, classmethod):
            self._take_function(value.__func__, where, owner if is_class else classes[0])
        elif isinstance(value, FunctionType) and not is_class and attribute not in places[0]:
            self._take_function(value, where, owner)
        else:
            is_static = isinstance(value, staticmethod)
            return self._take(value.__func__ if is_static else value, where)
        return FREE

    def _take_function(self, function: Any, name: str, owner: Any) -> None:
        if not isinstance(function, FunctionType) or is_own(function):
            raise UnfitError(f"{name} is {kind_of(function)}, which may read any attribute")
        self._follow(function, name, owner)

    # ---- names that are read of any value

    def _note_name(self, attribute: str, name: str) -> Any:
        if attribute[0] == "_" or attribute in UNSEEN:
            raise UnfitError(f"{name} uses {attribute}, by which it may read what changes")
        self._names.setdefault(attribute, name)
        return FREE

    def _check_names(self) -> None:
        """Raises UnfitError if the code of the step reads an attribute whose change could go
        unnoticed, since it belongs to no object that is compared before a replay."""
        for attribute, name in self._names.items():
            known = attribute in PUBLIC or attribute in USED
            if not known and any(hasattr(optimizer, attribute) for optimizer in self.optimizers):
                raise UnfitError(
                    f"{name} uses {attribute}: of an optimizer, a step may use zero_grad and step"
                )
            for module in self.all_modules:
                known = known or hasattr(module, attribute)
                if is_own(module) and attribute in read_attributes(module):
                    self._take_items(
                        [vars(module)[attribute]], f"{type(module).__name__}.{attribute}"
                    )
            if not known:
                raise UnfitError(
                    f"{name} reads .{attribute} of a value whose attributes are not compared"
                )

    # ---- code

    def _follow(self, function: FunctionType, name: str, owner: Any) -> None:
        """Registers everything that `function`, the user's step or a function that it calls,
        depends on: its code, its default arguments, variables of closures and globals, and what
        these use in turn. `is_same` then notices if any of them has changed.

        name    what the function is called in error messages
        owner   the value of its first argument, for a method; FREE if it is not known
        """
        if (key := (id(function), id(owner))) in self._seen:
            return
        self._seen.add(key)
        if {*vars(function)} - {"__wrapped__"}:
            raise UnfitError(f"{name} has attributes, which may change without notice")
        self._functions.append(function)
        code, known = function.__code__, dict[str, Any]()
        if owner is not FREE:
            if not code.co_argcount:
                raise UnfitError(f"{name} has its object in *{code.co_varnames[0]}")
            known[code.co_varnames[0]] = owner
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self._take_items(defaults, f"a default of {name}")
        for cell, variable in zip(function.__closure__ or (), code.co_freevars, strict=True):
            self._cells.append(cell)
            known[variable] = self._take(contents(cell), f"{variable} in {name}")
        self._look_at(code, known, function, name)

    def _look_at(
        self, code: CodeType, known: Mapping[str, Any], function: FunctionType, name: str
    ) -> None:
        """Goes through the bytecode of `code`, and of functions defined in it, and registers every
        variable and attribute that it reads, so that later changes are noticed. Raises UnfitError
        for an operation that a replay would not repeat.

        known      a dict: name of a local variable -> its value, as far as it is known
        function   the function whose code it is, which has the globals
        name       what the function is called in error messages
        """
        value, of, is_target = FREE, "", False
        for step in dis.get_instructions(code):
            operation, argument = step.opname, step.argval
            is_target |= step.is_jump_target
            if operation == "EXTENDED_ARG":
                continue
            if is_target and operation in ("LOAD_ATTR", "LOAD_METHOD"):
                self._note_name(argument, name)  # it may be of another value too
            is_target = False
            if operation in ("LOAD_ATTR", "LOAD_METHOD"):
                value, of = self._attribute(value, argument, of, name), f"{of}.{argument}"
                continue
            self._as_free(value, f"{of} in {name}")
            variables = argument if isinstance(argument, tuple) else (argument,)
            self._check_operation(
                operation, variables, known, {*function.__code__.co_freevars}, name
            )
            value, of = FREE, variables[-1]
            if operation == "LOAD_GLOBAL":
                value = self._global(function, argument, name)
            elif "LOAD_FAST" in operation or operation == "LOAD_DEREF":
                *others, value = [known.get(variable, FREE) for variable in variables]
                for other in others:
                    self._as_free(other, f"{variables[0]} in {name}")
        for part in code.co_consts:
            if isinstance(part, CodeType):
                of_part = {n: known[n] for n in part.co_freevars if n in known}
                self._look_at(part, of_part, function, name)

    def _check_operation(
        self, operation: str, variables: Any, known: Any, outer: set[str], name: str
    ) -> None:
        """Raises UnfitError for a bytecode operation that a replay would not repeat, such as
        setting a variable that exists outside of the function `name`. `variables` are the names
        that the operation uses, `known` the variables whose values are known, `outer` the variables
        of closures."""
        sets = operation.startswith(("STORE_", "DELETE_"))
        outside = sets and operation.endswith("DEREF") and not outer.isdisjoint(variables)
        kept = operation == "STORE_ATTR" and not SETTABLE.issuperset(variables)
        stored = variables[:1] if "LOAD" in operation else variables
        moved = sets and "FAST" in operation and not known.keys().isdisjoint(stored)
        if outside or kept or moved or operation in REFUSED:
            raise UnfitError(
                f"{name} {VERBS.get(operation, 'sets')} {variables[0] or ''}".rstrip()
                + ", which replays would not do: do it outside of the step"
            )

    def _global(self, function: FunctionType, variable: str, name: str) -> Any:
        self._variables.append((function.__globals__, variable))
        value = function.__globals__.get(variable, MISSING)
        if value is MISSING:
            value = vars(builtins).get(variable, MISSING)
        return self._take(value, f"{variable} in {name}")
