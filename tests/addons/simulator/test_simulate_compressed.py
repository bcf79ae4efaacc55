"""Compressed gradients beside data parallelism: nnmpi.simulate sync --compress."""

import json
from typing import Any

from nnmpi.addons.compression.compressed import BYTES_OF

KIND = "sync"


def test_compressed_gradients_send_what_their_codec_sends(simulator: Any) -> None:
    """10 layers of 100 x 100 float32, the default, on 4 replicas."""
    words = "--parameters 1e5 --layers 10 --replicas 4 --json"
    codecs = ("topk:0.01", "sign", "powersgd:2", "int8")
    assert {codec.partition(":")[0] for codec in codecs} == {*BYTES_OF}
    words += "".join(f" --compress {codec}" for codec in codecs)
    rows = json.loads(simulator(words).out)[1:5]
    assert [(row["name"], row["bytes"], row["messages"], row["gap"]) for row in rows] == [
        ("topk:0.01", 10 * 3 * 100 * 8, 30, 1),
        ("sign", 10 * 3 * (1250 + 4), 30, 1),
        ("powersgd:2", 10 * 1.5 * 2 * 200 * 4, 120, 1),
        ("int8", 10 * 1.5 * 40 * 260, 60, 1),
    ]
