"""Layouts: the only file that you fill. README.md says what is asked and how it is graded.

Numbers are float32, 4 bytes each. A ring all-reduce of n numbers on p ranks sends 2 (p - 1) / p n
from each rank; a reduce-scatter and an all-gather send half of that. Biases do not count.
"""

# ---- bytes that each rank sends in a training step


def dp_bytes(parameters: int, p: int) -> float:
    """Data parallelism on p ranks: gradients of all parameters are all-reduced."""
    raise NotImplementedError


def fsdp_bytes(layers: list[int], p: int) -> float:
    """FSDP (ZeRO 3) on p ranks, for layers with so many parameters, in their order.

    The weights of each layer are gathered for its forward pass and again for its backward pass, and
    its gradients are reduce-scattered. The last two layers are kept in between: gathered once.
    """
    raise NotImplementedError


def tp_bytes(d: int, blocks: int, rows: int, p: int) -> float:
    """Tensor parallelism on p ranks, for blocks d -> f -> d in a row and a batch of `rows`.

    The first layer of a block is cut by columns, the second by rows: the output of each block, of
    shape (rows, d), is all-reduced in the forward pass, and the gradient of its input, of the same
    shape, in the backward pass. Nobody asks for the gradient of the data.
    """
    raise NotImplementedError


def mixed_bytes(d: int, f: int, blocks: int, rows: int, dp: int, tp: int) -> float:
    """dp * tp ranks: each group of tp ranks has rows / dp of the batch, and cuts the blocks.

    Each rank then has 1 / tp of the 2 d f parameters of a block, and all-reduces their gradients
    with the dp ranks that have the same part.
    """
    raise NotImplementedError


# ---- seconds, and tokens a chip


def compute_seconds(parameters: int, rows: int, p: int, flops: float) -> float:
    """The seconds of all products of a step on p ranks of `flops` operations a second each.

    A row takes a multiplication and an addition for each parameter in the forward pass, and twice
    as many in the backward pass: for gradients of inputs and of weights.
    """
    raise NotImplementedError


def dp_tokens(p: int, flops: float, bandwidth: float) -> float:
    """The tokens (rows) a rank at which dp sends as long as it computes.

    With more tokens, sums can hide behind computing. A rank sends `bandwidth` bytes a second.
    """
    raise NotImplementedError


def fsdp_tokens(p: int, flops: float, bandwidth: float) -> float:
    """The tokens a rank at which FSDP with many layers sends as long as it computes."""
    raise NotImplementedError


def dp_or_tp_tokens(f: int, p: int) -> float:
    """The tokens a rank at which dp and tp send the same bytes, for many blocks d -> f -> d.

    With fewer tokens tp sends less, with more dp does.
    """
    raise NotImplementedError


def best_mesh(d: int, f: int, blocks: int, rows: int, p: int) -> tuple[int, int]:
    """The (dp, tp) with dp * tp == p for which each rank sends least; dp divides rows, tp divides
    f."""
    raise NotImplementedError


def memory(parameters: int, p: int, zero: int) -> float:
    """The bytes that each of p ranks of dp holds between passes, with Adam and ZeRO 0, 1, 2 or 3.

    Values, gradients and two numbers of Adam a parameter. ZeRO 1 divides Adam's numbers among the
    ranks, ZeRO 2 also the gradients, ZeRO 3 also the values.
    """
    raise NotImplementedError


# ---- your machine (machine.toml and plan.txt in this folder)


def by_hand() -> str:
    """The options of a layout that you have found by your formulas, such as "--dp 4 --tp 2"."""
    raise NotImplementedError


def by_search() -> str:
    """The options of the fastest layout that `nnmpi plan` finds."""
    raise NotImplementedError
