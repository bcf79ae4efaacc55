"""Wrong solutions of layouts that the checks have to catch."""

from classroom import Mutant

BY_HAND = '"--dp 3 --pp 2 --micro-batches 4"'
BY_SEARCH = '"--dp 3 --pp 2 --schedule zb-h1 --micro-batches 4"'

MUTANTS = {
    "one way around the ring": Mutant(
        (("return 2 * (p - 1) / p * numbers * 4", "return (p - 1) / p * numbers * 4"),),
        "dp bytes",
        "which a step on paper sends",
    ),
    "p times too much": Mutant(
        (("return 2 * (p - 1) / p * numbers * 4", "return 2 * (p - 1) * numbers * 4"),),
        "dp bytes",
        "dp_bytes(",
    ),
    "every layer is gathered twice": Mutant(
        (("sum(layers[:-2])", "sum(layers)"),), "fsdp bytes", "fsdp_bytes("
    ),
    "the gradient of the data too": Mutant(
        (("(2 * blocks - 1)", "2 * blocks"),), "tp bytes", "tp_bytes("
    ),
    "whole gradients in each group": Mutant(
        (("2 * d * f * blocks // tp, dp", "2 * d * f * blocks, dp"),), "mixed bytes", "mixed_bytes("
    ),
    "the whole batch in each group": Mutant(
        (("blocks, rows // dp, tp)", "blocks, rows, tp)"),), "mixed bytes", "mixed_bytes("
    ),
    "swapped axes": Mutant(
        (("rows // dp, tp)", "rows // tp, dp)"),), "mixed bytes", "mixed_bytes("
    ),
    "forward only": Mutant(
        (("6 * parameters * rows", "2 * parameters * rows"),), "seconds", "compute_seconds("
    ),
    "fsdp like dp": Mutant(
        (("return 3 * (p - 1)", "return 2 * (p - 1)"),), "tokens a rank", "fsdp_tokens("
    ),
    "tokens of the whole batch": Mutant(
        (("return f / p", "return float(f)"),), "dp or tp", "dp_or_tp_tokens("
    ),
    "the most instead of the least": Mutant(
        (("return min(meshes", "return max(meshes"),), "best mesh", "bytes; ("
    ),
    "the mesh in the wrong order": Mutant(
        (("blocks, rows, *mesh))", "blocks, rows, *mesh))[::-1]"),), "best mesh", "best_mesh("
    ),
    "ZeRO 2 keeps its gradients": Mutant((("zero >= 2", "zero >= 3"),), "memory", ", 2) is"),
    "plain dp": Mutant(((BY_HAND, '"--dp 6"'),), "layout by hand", "'--dp 6' needs"),
    "tp within nodes instead of dp": Mutant(
        ((BY_HAND, '"--tp 3 --pp 2 --micro-batches 4"'),),
        "layout by hand",
        "'--tp 3 --pp 2 --micro-batches 4' takes",
    ),
    "products start in no time": Mutant(
        ((BY_HAND, '"--dp 3 --pp 2 --micro-batches 8"'),),
        "layout by hand",
        "'--dp 3 --pp 2 --micro-batches 8' takes",
    ),
    "no search": Mutant(
        ((BY_SEARCH, '"--dp 3 --pp 2 --micro-batches 4"'),), "layout by search", "1.02 times"
    ),
    "a layout of other ranks": Mutant(
        ((BY_HAND, '"--dp 4 --tp 4"'),), "layout by hand", "by_hand() is '--dp 4 --tp 4': "
    ),
}
