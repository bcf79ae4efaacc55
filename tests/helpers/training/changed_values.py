"""Ways in which a program changes a value that a pass reads: rows of (what defines it, the
expression that reads it, the change). Names in `expression` are global; `self` is the model."""

from typing import Any, NamedTuple

COMMON = """
import builtins, contextvars, enum, functools, itertools, math, operator, os, random, sys, threading
import time, types, typing, weakref, dataclasses
from functools import partial
from time import monotonic
import numpy as np
import nnmpi
from nnmpi import Tensor, nn
from nnmpi.nn import functional as F
settings = types.ModuleType("settings")
settings.SCALE = 1.0
exec("def helper(): return SCALE", vars(settings))
class Cfg:
    of_class = 1.0
    def __init__(self): self.scale = 1.0
    def method(self): return self.scale
    @property
    def doubled(self): return 2 * self.scale
    @classmethod
    def by_class(cls): return cls.of_class
    @staticmethod
    def static(): return 1.0
    def __getitem__(self, key): return self.scale
    def __call__(self): return self.scale
class Base(Cfg):
    pass
class Derived(Base):
    pass
CFG = Cfg()
def f(s=1.0, *, k=1.0): return s * k
"""

MODEL = """
class Parent(nn.Module):
    of_parent = 1.0
class Model(Parent):
    of_class = 1.0
    def __init__(self):
        self.layer, self.act, self.scale = nn.Linear(4, 3), nn.Tanh(), 1.0
        self.table, self.names, self.cfg, self.by = [1.0], {{"k": 1.0}}, Cfg(), f
        self.register_buffer("seen", np.ones(1, "float32"))
    @property
    def doubled(self): return 2 * self.scale
    def method(self): return self.scale
    def factor(self, x): return {expression}
    def forward(self, x): return self.layer(x) * self.factor(x)
"""

FUNCTIONS = """
def loss(x, y): return F.mse_loss(x, y) * ({expression})
def step(x, y, *, model):
    return loss(model(x), y) + ({expression})
"""


class Way(NamedTuple):
    """What defines a value, the expression that reads it, what changes it, and what undoes that."""

    define: str
    expression: str
    change: str = "pass"
    undo: str = "pass"

    def names(self, of_model: bool = True) -> dict[str, Any]:
        """The names of a program that has a class Model, whose forward reads the value; or a
        function `loss` and a function `step` that read it."""
        names: dict[str, Any] = {"__name__": "program"}
        in_model = MODEL.format(expression=self.expression if of_model else "1.0")
        in_functions = "" if of_model else FUNCTIONS.format(expression=self.expression)
        exec("\n".join((COMMON, self.define, in_model, in_functions)), names)
        return names

    def changed(self, names: dict[str, Any], model: Any) -> None:
        """Changes the value of a program with these names."""
        names["model"] = model
        exec(self.change, names)


def _ways(*rows: str) -> dict[str, Way]:
    return {row: Way(*(part.strip() for part in row.split("|"))) for row in rows}


OF_PROGRAM = _ways(
    # variables
    "S = 1.0 | S | S = 3.0",
    "S = (1.0, 2) | S[0] | S = (3.0, 2)",
    "S = 1.0; g = lambda: S; h = lambda: g() | h() | S = 3.0",
    "S = [1.0] | S[0] | S[0] = 3.0",
    "S = [1.0] | len(S) | S.append(1)",
    "S = {'k': 1.0} | S['k'] | S['k'] = 3.0",
    "S = {'k': 1.0}.get | S('k') | S.__self__['k'] = 3.0",
    "S = {1} | len(S) | S.add(2)",
    "S = np.ones(1) | float(S[0]) | S[0] = 3.0",
    "S = nnmpi.ones(1) | S | S.mul_(3)",
    "S = itertools.count(1) | next(S) | next(S)",
    "S = 1.0 | globals()['S'] | S = 3.0",
    "S = 1.0 | eval('S') | S = 3.0",
    "builtins.OF_TEST = 1.0 | OF_TEST | builtins.OF_TEST = 3.0 | del builtins.OF_TEST",
    "builtins.OF_TEST = 1.0 | OF_TEST | OF_TEST = 3.0 | del builtins.OF_TEST",
    "old = builtins.abs | abs(1.0) | builtins.abs = lambda v: 3 * v | builtins.abs = old",
    # numbers
    "S = 1 | S | S = 3",
    "S = 1 | S | S = 1.5",
    "S = False | 3.0 if S else 1.0 | S = True",
    "S = 1.0 | S if S < 2 else -S | S = 3.0",
    "S = 2.0 | 0.5 * S + 1 / S | S = 3.0",
    "S = 2.0 | 1.5 ** S + nnmpi.full((), 1.5) ** S | S = 3.0",
    "S = 1 | nnmpi.ones(S).sum() | S = 3",
    "S = np.float32(1) | S | S = np.float32(3)",
    # functions
    "S = f | S() | S.__code__ = (lambda s=1.0, *, k=1.0: 3 * s).__code__",
    "S = f | S() | S.__defaults__ = (3.0,)",
    "S = f | S() | S.__kwdefaults__ = {'k': 3.0}",
    "S = f | S() | S.__kwdefaults__['k'] = 3.0",
    "S = f | S() | S = lambda: 3.0",
    "f.scale = 1.0 | f.scale | f.scale = 3.0",
    "S = f | getattr(S, 'scale', 1.0) | S.scale = 3.0",
    "S = partial(f, k=1.0) | S() | S.keywords['k'] = 3.0",
    "S = partial(f, k=1.0) | S() | S.keywords['s'] = 3.0",
    "S = partial(f, 1.0) | S() | S.__setstate__((f, (3.0,), {}, {}))",
    "S = CFG.method | S() | CFG.scale = 3.0",
    "exec('def make(v):\\n def get(): return v\\n return get'); S = make(1.0)"
    " | S() | S.__closure__[0].cell_contents = 3.0",
    "S = functools.lru_cache(lambda: CFG.scale) | S() | CFG.scale = 3.0; S.cache_clear()",
    # modules of Python
    "| settings.SCALE | settings.SCALE = 3.0",
    "| settings.helper() | settings.SCALE = 3.0",
    "| settings.helper() | settings.helper = lambda: 3.0",
    "S = settings.helper | S() | settings.SCALE = 3.0",
    "settings.inner = CFG | settings.inner.scale | CFG.scale = 3.0",
    "settings.table = [1.0] | settings.table[0] | settings.table[0] = 3.0",
    "| vars(settings)['SCALE'] | settings.SCALE = 3.0",
    "| settings.__dict__['SCALE'] | settings.SCALE = 3.0",
    "| getattr(settings, 'SCALE') | settings.SCALE = 3.0",
    "settings.__getattr__ = lambda name: CFG.scale | settings.other | CFG.scale = 3.0",
    "settings.__class__ = type('M', (types.ModuleType,), {'other': property(lambda m: CFG.scale)})"
    " | settings.other | CFG.scale = 3.0",
    "sys.modules['of_test'] = settings | sys.modules['of_test'].SCALE | settings.SCALE = 3.0"
    " | del sys.modules['of_test']",
    "sys.modules['of_test'] = settings | __import__('of_test').SCALE | settings.SCALE = 3.0"
    " | del sys.modules['of_test']",
    "old = math.pi | math.pi | math.pi = 9.0 | math.pi = old",
    "os.environ['OF_TEST'] = '1' | float(os.environ['OF_TEST']) | os.environ['OF_TEST'] = '3'",
    "os.environ['OF_TEST'] = '1' | float(os.getenv('OF_TEST', 1)) | os.environ['OF_TEST'] = '3'",
    "old = sys.getrecursionlimit() | sys.getrecursionlimit() | sys.setrecursionlimit(5000)"
    " | sys.setrecursionlimit(old)",
    # objects and classes
    "| CFG.scale | CFG.scale = 3.0",
    "| CFG.scale | vars(CFG)['scale'] = 3.0",
    "| CFG.scale | CFG.__dict__ = {'scale': 3.0}",
    "| CFG.of_class | CFG.of_class = 3.0",
    "| CFG.of_class | Cfg.of_class = 3.0",
    "S = Derived | S.of_class | Cfg.of_class = 3.0",
    "S = Derived | S.of_class | Base.of_class = 3.0",
    "S = Derived() | S.of_class | S.__class__ = type('Other', (Derived,), {'of_class': 3.0})",
    "S = Derived() | S.of_class | Derived.__bases__ = (type('B', (Cfg,), {'of_class': 3.0}),)",
    "| CFG.doubled | CFG.scale = 3.0",
    "| CFG.doubled | Cfg.doubled = property(lambda self: 5.0)",
    "| CFG.method() | CFG.scale = 3.0",
    "| CFG.method() | CFG.method = lambda: 3.0",
    "| CFG.method() | Cfg.method = lambda self: 3.0",
    "| CFG.method() | Cfg.method.__code__ = (lambda self: 3.0).__code__",
    "| CFG.by_class() | Cfg.of_class = 3.0",
    "| CFG.static() | Cfg.static = staticmethod(lambda: 3.0)",
    "| CFG['k'] | CFG.scale = 3.0",
    "| CFG() | CFG.scale = 3.0",
    "S = types.SimpleNamespace(scale=1.0) | S.scale | S.scale = 3.0",
    "S = dataclasses.make_dataclass('D', ['scale'], frozen=True)(1.0)"
    " | S.scale | object.__setattr__(S, 'scale', 3.0)",
    "S = type('P', (), {'__slots__': ['scale']})(); S.scale = 1.0 | S.scale | S.scale = 3.0",
    "S = type('G', (), {'__getattr__': lambda s, n: CFG.scale})() | S.other | CFG.scale = 3.0",
    "S = type('D', (), {'__get__': lambda *a: CFG.scale})(); Cfg.by = S | CFG.by | CFG.scale = 3.0",
    "S = enum.Enum('S', {'A': 1.0}) | S.A.value | S.A._value_ = 3.0",
    "S = enum.Enum('S', {'A': 1.0}); S.A.scale = 1.0 | S.A.scale | S.A.scale = 3.0",
    "S = typing.NamedTuple('S', [('scale', float)])(1.0) | S.scale | S = S._replace(scale=3.0)",
    "S = contextvars.ContextVar('S', default=1.0) | S.get() | S.set(3.0)",
    "S = threading.local(); S.scale = 1.0 | S.scale | S.scale = 3.0",
    "S = weakref.ref(CFG) | S().scale | CFG.scale = 3.0",
    "| operator.attrgetter('scale')(CFG) | CFG.scale = 3.0",
    "S = operator.attrgetter('scale') | S(CFG) | CFG.scale = 3.0",
    "| operator.methodcaller('method')(CFG) | CFG.scale = 3.0",
    "S = [1.0] | operator.itemgetter(0)(S) | S[0] = 3.0",
    # clocks and random numbers
    "| monotonic() | pass",
    "| time.perf_counter() | pass",
    "| random.random() | pass",
    "| np.random.rand() | pass",
    "S = np.random.default_rng(0) | S.random() | pass",
)
"""Values that code anywhere may read: in a step, a loss, or a model."""

OF_MODEL = _ways(
    "| self.scale | model.scale = 3.0",
    "| self.scale | vars(model)['scale'] = 3.0",
    "| self.scale | object.__setattr__(model, 'scale', 3.0)",
    "| self.scale | model.__dict__.update(scale=3.0)",
    "| vars(self)['scale'] | model.scale = 3.0",
    "| vars(self)['table'][0] | model.table[0] = 3.0",
    "| self.__dict__['scale'] | vars(model)['scale'] = 3.0",
    "| self.__dict__['table'][0] | model.table[0] = 3.0",
    "| getattr(self, 'scale') | vars(model)['scale'] = 3.0",
    "| getattr(self, 'sca' + 'le'[:2]) | vars(model)['scale'] = 3.0",
    "| getattr(self, '__dict__')['scale'] | vars(model)['scale'] = 3.0",
    "| getattr(self, 'extra', 1.0) | vars(model)['extra'] = 3.0",
    "| 3.0 if hasattr(self, 'extra') else 1.0 | model.extra = 3.0",
    "| operator.attrgetter('scale')(self) | vars(model)['scale'] = 3.0",
    "| self.table[0] | model.table[0] = 3.0",
    "| self.names['k'] | model.names['k'] = 3.0",
    "| self.cfg.scale | model.cfg.scale = 3.0",
    "| self.by() | f.__defaults__ = (3.0,)",
    "| self.by() | vars(model)['by'] = lambda: 3.0",
    "| self.of_class | Model.of_class = 3.0",
    "| self.of_class | vars(model)['of_class'] = 3.0",
    "| self.of_parent | Parent.of_parent = 3.0",
    "| type(self).of_class | Model.of_class = 3.0",
    "| self.__class__.of_class | Model.of_class = 3.0",
    "| super().of_parent | Parent.of_parent = 3.0",
    "| self.doubled | vars(model)['scale'] = 3.0",
    "| self.doubled | Model.doubled = property(lambda self: 5.0)",
    "| self.method() | vars(model)['method'] = lambda: 3.0",
    "| self.method() | Model.method = lambda self: 3.0",
    "| self.method() | Model.method.__code__ = (lambda self: 3.0).__code__",
    "| self.seen | model.seen.mul_(3)",
    "| self.seen | model.seen = 3 * model.seen",
    "| self.layer.in_features | vars(model.layer)['in_features'] = 12",
    "| self.act(nnmpi.ones(1)) | model.act = nn.ReLU()",
    "| self.act(nnmpi.ones(1)) | vars(model)['act'] = nn.ReLU()",
    "old = nn.Tanh.forward | self.act(nnmpi.ones(1)) | nn.Tanh.forward = lambda self, x: 3 * x"
    " | nn.Tanh.forward = old",
    "| 1.0 | model.factor = lambda x: 3.0",
    "| 1.0 | Model.factor = lambda self, x: 3.0",
    "| 1.0 | Model.forward = lambda self, x: 3 * self.layer(x)",
    "| 1.0 | model.register_forward_hook(lambda module, given, y: 3 * y)",
)
"""Values that a method of a model reads of it."""

HARMLESS = _ways(
    "| np.sqrt(2.0)",
    "| float(np.exp(1.0)) + np.pi",
    "| np.prod((1, 2)) + np.float32(2)",
    "| np.maximum(2.0, 1.0)",
    "| np.linspace(0, 1, 3).sum()",
    "| math.sqrt(len(x)) * math.pi",
    "| operator.mul(2.0, 3.0) + max(1, 2)",
    "| functools.reduce(operator.add, (1.0, 2.0))",
    "| sum(i for i in range(3)) / x.shape[0]",
    "| sum(a * b for a, b in zip((1, 2), (3, 4), strict=True))",
    "| nnmpi.ones(1) + F.relu(nnmpi.ones(1))",
    "| F.softmax(x, 1).mean() + x.max(1)[0].mean()",
    "| nnmpi.cat((x, x)).std()",
    "| nnmpi.ones(()) + np.full((), 2.0)",
    "| 2.0 if isinstance(x, Tensor) else 1.0",
    "| [1.0, 2.0][1] + {'k': 1.0}['k']",
    "S = 2.0 | S",
    "S = (2.0, 3) | S[0]",
    "| f(2.0)",
    "S = partial(f, k=2.0) | S()",
    "| settings.SCALE + settings.helper()",
    "| CFG.scale + CFG.method() + CFG.doubled",
    "S = dataclasses.make_dataclass('D', ['scale'], frozen=True)(2.0) | S.scale",
    "S = typing.NamedTuple('S', [('scale', float)])(2.0) | S.scale + S[0]",
    "S = enum.Enum('S', {'A': 2.0}) | S.A.value if S.A is S.A else 1.0",
    "S = nnmpi.no_grad()(lambda: 2.0) | S()",
)
"""Expressions that are replayed wherever they are: in a step, a loss, or a model."""

HARMLESS_OF_MODEL = _ways(
    "| self.scale + self.of_class + self.of_parent + type(self).of_class",
    "| self.doubled + self.method() + super().of_parent",
    "| getattr(self, 'extra', 1.0) if not hasattr(self, 'extra') else 2.0",
    "| self.by(2.0) + self.layer.in_features",
    "| self.layer.weight.mean() + self.act(x).mean() + self.seen",
)
"""The same for methods of a model."""
