"""A codec of a user's own, which sends gradients as they are, in two messages."""

import numpy as np

from nnmpi.addons.compression.codecs import Codec, CodecInput
from nnmpi.addons.compression.exchange import Phases


def _in_two(bucket: CodecInput, _: float) -> Phases:
    rows = np.array_split(bucket.row.copy(), 2)
    bucket.row[...] = 0
    for row in rows:
        yield bucket.wire.start(row, "ring")
    return np.concatenate(rows)


IN_TWO = Codec(_in_two)
