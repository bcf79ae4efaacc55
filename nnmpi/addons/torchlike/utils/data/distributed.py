"""PyTorch's `utils.data.distributed`: DistributedSampler, which is loaded when it is used."""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from nnmpi import addons as _addons

if not _TYPE_CHECKING:

    def __getattr__(name: str) -> _Any:
        if (where := _addons.names_of("nnmpi.utils.data.distributed").get(name)) is None:
            raise AttributeError(f"nnmpi.utils.data.distributed has no {name!r}")
        return _addons.loaded(where)
