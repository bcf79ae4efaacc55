"""STORES: what makes the store of each kind that replicas have, by the names of arrangements.

Stores of other strategies take one argument more, which only these know: `VersionStore` of
PipeDream, `SliceStore` of reproducible runs (`checks/reproducible.py`), `ServedStore` of a
parameter server (`server/strategy.py`).
"""

from collections.abc import Callable, Mapping
from functools import partial

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
    "zero 1": partial(ZeroStore, GatheredValues, WholeGradients),
    "zero 2": partial(ZeroStore, GatheredValues, GradientSlots),
    "zero 3": partial(ZeroStore, WeightSlots, GradientSlots),
}
