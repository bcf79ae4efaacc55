"""Compression: sums of arrays over ranks, with messages that are smaller than the arrays.

exchange.py   a computation with several messages in turn, as one Transfer
blocks.py     sums with all messages in bfloat16 or int8
codecs.py     topk, sign, PowerSGD and int8 for gradients, with their residuals
store.py      the memory of parameters with --compress; on_paper.py: what its sums exchange
"""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=("nnmpi.addons.compression",),
    rows={
        "options": {"compression": "nnmpi.addons.compression.options:ADDED"},
        "texts": {"compress": "nnmpi.addons.compression.store:TEXTS"},
        "modules": {"parallel.compression": "nnmpi.addons.compression"},
        "checks": {"compress": "nnmpi.addons.compression.store:CHECKS"},
        "codecs": {"compress": "nnmpi.addons.compression.alone"},
        "store_kinds": {"compress": "nnmpi.addons.compression.store:KIND"},
        "event_fields": {"compress": "nnmpi.addons.compression.store:FIELDS"},
    },
)
