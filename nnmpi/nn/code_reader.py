"""CodeReader: finds in the bytecode of users' functions which values a recorded pass or step reads
besides its inputs, to notice when the recording is no longer valid.

compared   variables of the program and of closures, attributes of objects and classes, and
           functions: they must be the same objects in each call
followed   the code of users' functions and methods; Python modules and users' objects, of which the
           code may only use attributes, as in `np.exp` and `self.model`, since other uses would not
           show which attributes are read
refused    lists, dicts, arrays; code that sets a variable or an attribute; functions that
           `known_values.py` does not list

Of modules (layers) the code may read any attribute, as in `forward`. An attribute of an unknown
value counts as one of every module.
"""

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from nnmpi.autograd import no_grad
from nnmpi.nn.bytecode import codes_in, operations_of
from nnmpi.nn.known_values import (
    fixed_attribute,
    is_fixed,
    is_known,
    is_namespace,
    is_of_modules,
    kind_of,
)
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.read_names import ReadNames
from nnmpi.nn.refused_operations import check_operation
from nnmpi.nn.registries import read_attributes
from nnmpi.nn.users_code import (
    MISSING,
    ReadValues,
    UnfitError,
    contents,
    is_built_in,
    is_code,
    is_own,
    is_plain,
)

PLAIN_DESCRIPTORS = (FunctionType, property, classmethod, staticmethod)

FREE = object()
"""Stands for a value of which the code may read any attribute in PUBLIC."""

MODULE = object()
"""Stands for the module whose method is read: the code may read any attribute of it."""

_DECORATED = no_grad()(len).__code__
"""The code of functions that `no_grad()` or another context manager decorates."""


class CodeReader:
    """Finds every object on which users' code depends, and adds it to `values` for comparison;
    raises UnfitError if one could change unnoticed.

    given        the only modules that the code may use, or None
    kinds        classes of further objects that it may use (optimizers)
    modules      the modules that it uses, without submodules
    parameters   the parameters that it uses by themselves
    """

    def __init__(
        self,
        values: ReadValues,
        given: Iterable[Module] | None = None,
        kinds: tuple[type, ...] = (),
        methods: Sequence[str] = (),
    ) -> None:
        self._values, self._kinds, self._methods = values, kinds, methods
        self.modules, self.objects = [*(given or ())], list[Any]()
        self._is_closed = given is not None
        self.parameters = list[Parameter]()
        self._seen = set[Any]()  # functions, and attributes of modules, that were looked at
        self._names = ReadNames()

    def read(self, function: Callable[..., Any], name: str) -> None:
        """Reads a function of the user, whose name is `name`, and the functions that it uses."""
        self._take_all([function], name)

    def finish(self) -> None:
        """Reads the modules that the code uses. All functions have been read."""
        known: Any = None
        while known != (known := (len(self._names), len(self._seen))):
            for module in self.all_modules:  # what is looked at uses more names
                self._look_at_module(module)
        self._names.check(self.all_modules, self.objects, self._methods)

    @property
    def all_modules(self) -> list[Module]:
        """The modules that the code uses, and their submodules."""
        return [*dict.fromkeys(m for root in self.modules for m in root.modules())]

    # ---- values

    def _take(self, value: Any, name: str) -> Any:
        """Adds `value`, which the code reads, and all that its own code uses, to those that are
        compared; `name`, such as "model in train_step", says in messages where it was read.

        Raises UnfitError if the value could change unnoticed. Returns a value itself if the code
        may read only some of its attributes, and the constant FREE for any other.
        """
        if isinstance(value, Module):
            self._take_module(value, name)
        elif isinstance(value, self._kinds) and is_own(value):
            if value not in self.objects:
                self.objects.append(value)
                for of in self._methods:
                    self._values.add_name(vars(value), of)
        elif isinstance(value, Parameter):
            self._take_parameter(value, name)
        elif isinstance(value, MethodType):
            self._take_method(value, name)
        elif isinstance(value, partial) and not vars(value):
            self._values.add_partial(value)
            self._take_all((value.func, *value.args, *value.keywords.values()), name)
        elif isinstance(value, FunctionType) and value.__code__ is _DECORATED:
            self._take_decorated(value, name)
        elif isinstance(value, FunctionType) and not (is_own(value) or is_known(value)):
            self._follow(value, name, FREE)
            return value
        elif type(value) in (tuple, frozenset):
            self._take_all(value, name)
        elif is_fixed(value):
            self._take_all(value if isinstance(value, tuple) else (), name)
            return value
        elif is_plain(value) or is_known(value):
            return FREE
        elif isinstance(value, type) and issubclass(value, Module):
            self._look_at_class(value)
        elif isinstance(value, ModuleType) or is_namespace(value):
            return value
        elif isinstance(value, BuiltinFunctionType | FunctionType | type):
            raise UnfitError(f"{name} is no function or class that a recording may use")
        else:
            raise UnfitError(
                f"{name} is {kind_of(value)}, which may change without notice",
                _advice(value),
            )
        return FREE

    def _take_all(self, values: Iterable[Any], name: str) -> None:
        for value in values:
            self._check_whole(self._take(value, name), name)

    def _take_module(self, module: Module, name: str) -> None:
        if any(module is other for other in self.modules):
            return
        if self._is_closed and module not in self.all_modules:
            raise UnfitError(f"{name} is a module from outside of the model")
        self.modules.append(module)

    def _take_parameter(self, parameter: Parameter, name: str) -> None:
        self.parameters.append(parameter)
        if self._is_closed and not any(
            p is parameter for m in self.modules for p in m.parameters()
        ):
            raise UnfitError(f"{name} is a parameter from outside of the model")

    def _take_decorated(self, function: FunctionType, name: str) -> None:
        cells = dict(zip(_DECORATED.co_freevars, function.__closure__ or (), strict=True))
        if not isinstance(contents(cells["self"]), no_grad):
            raise UnfitError(f"{name} is decorated with {kind_of(contents(cells['self']))}")
        self._take_all([contents(cells["func"])], name)

    def _take_method(self, method: MethodType, name: str) -> None:
        function, owner = method.__func__, method.__self__
        taken = self._take(owner, name)
        if isinstance(owner, (Module, *self._kinds)):
            self._names.note(function.__name__, name)
        elif isinstance(function, FunctionType):
            self._follow(function, name, taken)
        else:
            raise UnfitError(f"{name} is a method of {kind_of(owner)}")

    def _check_whole(self, value: Any, name: str) -> None:
        """Raises UnfitError for a module or a user's object that code passes on whole: only
        attributes that it names are compared."""
        is_free = value is FREE or value is MODULE or isinstance(value, FunctionType)
        if is_of_modules(value):
            raise UnfitError(f"{name} is no function or class that a recording may use")
        if not (is_free or is_fixed(value)):
            raise UnfitError(
                f"{name} is {kind_of(value)}, used otherwise than by its attributes: replays would "
                "not notice what is read of it, or changed"
            )

    def _attribute(self, owner: Any, attribute: str, name: str, code: str) -> Any:
        """Adds an attribute that the code reads of `owner`, and returns its value as `_take` does;
        `name` and `code` are for messages."""
        where = f"{name}.{attribute} in {code}"
        if owner is FREE:
            self._names.note(attribute, code)
            return FREE
        if owner is MODULE:
            self._names.note_of_module(attribute, code)
            return FREE
        if isinstance(owner, FunctionType):
            raise UnfitError(f"{where} is an attribute of a function, which may change unnoticed")
        if is_fixed(owner):
            return self._of_fixed(owner, attribute, where)
        if isinstance(owner, ModuleType):
            return self._of_python_module(owner, attribute, where)
        if attribute[:2] == "__":
            raise UnfitError(f"{code} uses {attribute}, by which it may read what changes")
        return self._of_object(owner, attribute, where)

    def _of_object(self, owner: Any, attribute: str, where: str) -> Any:
        """Adds the places in which Python looks for an attribute of an object or a class, and its
        value, which it returns as `_take` does."""
        is_class = isinstance(owner, type)
        classes = (owner if is_class else type(owner)).__mro__[:-1]
        self._values.add_class_of(owner)
        places = [*([] if is_class else [vars(owner)]), *map(vars, classes)]
        for place in places:
            self._values.add_name(place, attribute)
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

    def _of_fixed(self, owner: Any, attribute: str, where: str) -> Any:
        value = fixed_attribute(owner, attribute)
        if value is MISSING:
            raise UnfitError(f"{where} is an attribute which may change without notice")
        if isinstance(owner, Enum):
            self._values.add_items(vars(owner))
        return self._take(value, where)

    def _of_python_module(self, module: ModuleType, attribute: str, where: str) -> Any:
        self._values.add_name(vars(module), attribute)
        is_listed = attribute in vars(module) and type(module) is ModuleType
        if not is_listed and module.__name__.partition(".")[0] not in ("nnmpi", "numpy"):
            raise UnfitError(f"{where} is computed by the module, which may change unnoticed")
        return self._take(getattr(module, attribute, MISSING), where)

    def _take_function(self, function: Any, name: str, owner: Any) -> None:
        if not isinstance(function, FunctionType) or is_own(function):
            raise UnfitError(f"{name} is {kind_of(function)}, which may read any attribute")
        self._follow(function, name, owner)

    # ---- modules (layers)

    def _look_at_module(self, module: Module) -> None:
        name, of_library = type(module).__name__, is_own(module)
        if self._is_new(module, ""):
            self._values.add_module(module)
        for attribute, value in read_attributes(module).items():
            is_called = is_code(value) and not (is_own(value) or is_built_in(value))
            is_read = attribute in self._names.of_values or is_called
            is_read = is_read if of_library else self._names.has(attribute, value)
            if is_read and self._is_new(module, attribute):
                self._take_all([value], f"{name}.{attribute}")
        for cls in type(module).__mro__:
            if not is_own(cls) and cls is not object:
                self._look_at_class(cls)

    def _look_at_class(self, cls: type) -> None:
        """Looks at the class of a module: compares its attributes, reads methods code may use."""
        if is_own(cls):
            return
        self._values.add_class(cls)
        for attribute, value in vars(cls).items():
            if not (self._names.has(attribute, value) and self._is_new(cls, attribute)):
                continue
            where = f"{cls.__name__}.{attribute}"
            plain = value.fget if isinstance(value, property) else value
            if isinstance(plain, staticmethod):
                self._take_all([plain.__func__], where)
            elif isinstance(plain, classmethod):
                self._follow(plain.__func__, where, MODULE)  # type: ignore[arg-type]
            elif isinstance(plain, FunctionType):
                self._follow(plain, where, MODULE)
            else:
                self._take_all([plain], where)

    def _is_new(self, *key: Any) -> bool:
        """True if these objects are new to this method, so that each is looked at once."""
        is_new = (known := (*map(id, key[:1]), *key[1:])) not in self._seen
        self._seen.add(known)
        return is_new

    # ---- code

    def _follow(self, function: FunctionType, name: str, owner: Any) -> None:
        """Adds all that `function` depends on: code, defaults, closures, globals, and what these
        use in turn. `name` is for messages; `owner` is the first argument of a method, or FREE if
        it is unknown."""
        if is_own(function) or not self._is_new(function, id(owner)):
            return
        if {*vars(function)} - {"__wrapped__"}:
            raise UnfitError(f"{name} has attributes, which may change without notice")
        self._values.add_function(function)
        code, known = function.__code__, dict[str, Any]()
        if owner is not FREE:
            if not code.co_argcount:
                raise UnfitError(f"{name} has its object in *{code.co_varnames[0]}")
            known[code.co_varnames[0]] = owner
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self._take_all(defaults, f"a default of {name}")
        for cell, variable in zip(function.__closure__ or (), code.co_freevars, strict=True):
            if variable != "__class__":  # of a method that calls super()
                self._values.add_cell(cell)
                known[variable] = self._take(contents(cell), f"{variable} in {name}")
        self._look_at(code, known, function, name)

    def _look_at(
        self, code: CodeType, known: Mapping[str, Any], function: FunctionType, name: str
    ) -> None:
        """Adds every variable and attribute that `code`, and functions defined in it, read. Raises
        UnfitError for an operation that a replay would not repeat.

        known      a dict: name of a local variable -> its value, as far as it is known
        function   the function whose code it is, which has the globals
        """
        of_module = any(value is MODULE for value in known.values())
        operations = [*operations_of(code)]
        for k, operation in enumerate(operations):
            check_operation(operation, known, {*function.__code__.co_freevars}, name, of_module)
            value, of = FREE, operation.variables[-1]
            if operation.name == "LOAD_GLOBAL":
                value = self._global(function, of, name)
                if of_module and is_of_modules(value):
                    self._names.note_use(value, operations[k + 1 : k + 3], name)
                    value = FREE
            elif "LOAD_FAST" in operation.name or operation.name == "LOAD_DEREF":
                *others, value = [known.get(variable, FREE) for variable in operation.variables]
                for other in others:
                    self._check_whole(other, f"{operation.variables[0]} in {name}")
            for attribute in operation.attributes:
                value, of = self._attribute(value, attribute, of, name), f"{of}.{attribute}"
            self._check_whole(value, f"{of} in {name}")
        for part in codes_in(code):
            of_part = {n: known[n] for n in part.co_freevars if n in known}
            self._look_at(part, of_part, function, name)

    def _global(self, function: FunctionType, variable: str, name: str) -> Any:
        self._values.add_name(function.__globals__, variable)
        value = function.__globals__.get(variable, MISSING)
        if value is MISSING:
            self._values.add_name(vars(builtins), variable)
            value = vars(builtins).get(variable, MISSING)
        return value if is_of_modules(value) else self._take(value, f"{variable} in {name}")


def _advice(value: Any) -> str:
    """Returns what to write in a training step instead of such a value, as the end of a message."""
    if isinstance(value, list):
        return "; write a tuple, or outside of the step: results.append(step(x))"
    if isinstance(value, dict):
        return "; pass it as an argument of the step"
    if is_own(value) and hasattr(value, "step"):
        return "; call its step() outside, behind the compiled step"
    return "; pass what the step reads of it as an argument, or use it outside of the step"
