"""Memory that causal attention takes besides its input, output and their gradients."""

import json
import resource

import numpy as np

HEADS, CHANNELS = 4, 64


def main(positions: str) -> None:
    """Print the peak of one sample, forward and back."""
    import nnmpi
    from nnmpi import nn

    def run(length: int) -> int:
        layer = nn.SelfAttention(HEADS, is_causal=True)
        x = nnmpi.tensor(np.ones((1, length, 3 * HEADS * CHANNELS), np.float32), requires_grad=True)
        layer(x).sum().backward()
        assert x.grad is not None
        return int(x.array.nbytes)

    run(64)
    before = _peak()
    nbytes = run(int(positions))
    held = 2 * nbytes + 2 * nbytes // 3
    matrix = 4 * HEADS * int(positions) ** 2
    print(json.dumps({"bytes": _peak() - before, "held_bytes": held, "matrix_bytes": matrix}))


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
