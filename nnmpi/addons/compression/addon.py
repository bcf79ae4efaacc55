"""Sums of gradients in fewer bytes: 16 bits, the largest elements, or low rank."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=(
        "nnmpi.addons.compression",
        *("nnmpi.parallel.compression", "nnmpi.collectives.compressed"),
    ),
    rows={
        "options": {"compression": "nnmpi.addons.compression.options:PART"},
        "checks": {"compress": "nnmpi.parallel.compression.proof:check"},
        "graph_checks": {"compress": "nnmpi.parallel.compression.store:check_terms"},
        "codec_traffic": {"compress": "nnmpi.collectives.compressed:sent"},
        "codecs": {"compress": "nnmpi.parallel.compression.alone:codec_call"},
        "store_kinds": {"compress": "nnmpi.parallel.compression.store:KIND"},
        "start_fields": {"compress": "nnmpi.parallel.compression.store:start_fields"},
        "phrases": {"compress": "nnmpi.parallel.compression.store:phrases"},
    },
)
