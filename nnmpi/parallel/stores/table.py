"""STORES: the constructors of the stores that an arrangement may name.

Stores of other strategies take one more argument and are made there: `VersionStore` by PipeDream,
`SliceStore` by reproducible runs (`checks/reproducible.py`), `ServedStore` by a parameter server
(`server/strategy.py`).
"""

from collections.abc import Callable, Mapping
from functools import partial

from nnmpi.parallel.stores.compressed import CompressedStore
from nnmpi.parallel.stores.gathered_values import GatheredValues
from nnmpi.parallel.stores.gradient_slots import GradientSlots, WholeGradients
from nnmpi.parallel.stores.local import LocalStore, StoreSpec
from nnmpi.parallel.stores.node import NodeStore
from nnmpi.parallel.stores.weight_slots import WeightSlots
from nnmpi.parallel.stores.zero import ZeroStore

STORES: Mapping[str, Callable[[StoreSpec], LocalStore]] = {
    "local": LocalStore,
    "replica": LocalStore,
    "node": NodeStore,
    "compressed": CompressedStore,
    "zero 1": partial(ZeroStore, GatheredValues, WholeGradients),
    "zero 2": partial(ZeroStore, GatheredValues, GradientSlots),
    "zero 3": partial(ZeroStore, WeightSlots, GradientSlots),
}
