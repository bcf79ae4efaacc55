"""Wrong solutions of the assignment tensor-parallelism, and the check and words that must catch
each."""

from classroom import Mutant

SUMMED = "    total = x.copy()\n    comm.all_reduce(total)\n    return total\n"
ENTER = "    x, sum_over_ranks = copy(comm, x)\n"
NOT_ENTERED = "    sum_over_ranks = np.copy\n"
COLUMN = ENTER + "    return x @ W + b"
ATTENTION = ENTER + "    q, k, v"
LINEAR = "(sum_over_ranks(g @ W.T), x.T @ g, g.sum(axis=0))"
HIGHEST = "    z = scores - highest.max(axis=0)[:, None]\n"
HEADS = "    q, k, v = ((x @ W).reshape(t, heads, d).transpose(1, 0, 2)"

MUTANTS = {
    "missing backward all-reduce": Mutant(
        (("return x, lambda g: summed(comm, g)", "return x, lambda g: g"),),
        "copy",
        "an all-reduce is missing",
    ),
    "no vjp": Mutant(
        (("return x, lambda g: summed(comm, g)", "return x"),), "copy", "gradient of x is NoneType"
    ),
    "argument overwritten": Mutant(
        ((SUMMED, "    comm.all_reduce(x)\n    return x\n"),), "copy", "its argument g"
    ),
    "sum in both passes": Mutant(
        (
            (
                "return summed(comm, x), lambda g: g",
                "return summed(comm, x), lambda g: summed(comm, g)",
            ),
        ),
        "reduce",
        "2 times too large",
    ),
    "mean instead of the sum": Mutant(
        (("return summed(comm, x), lambda", "return summed(comm, x) / comm.size, lambda"),),
        "reduce",
        "2 times too small",
    ),
    "x enters the layer without copy": Mutant(
        ((COLUMN, COLUMN.replace(ENTER, NOT_ENTERED)),),
        "column linear",
        "the gradient of x",
    ),
    "swapped axes": Mutant(
        ((LINEAR, "(sum_over_ranks(g @ W.T), g.T @ x, g.sum(axis=0))"),),
        "column linear",
        "the gradient of W has shape",
    ),
    "bias on every rank": Mutant(
        (("reduce(comm, x @ W)\n    return y + b,", "reduce(comm, x @ W + b)\n    return y,"),),
        "row linear",
        "b is added on every rank",
    ),
    "a gradient too many": Mutant(
        (
            (
                "y + b, lambda g: (g @ W.T, x.T @ g, g.sum(axis=0))",
                "y + b, lambda g: (g @ W.T, x.T @ g, g.sum(axis=0), None)",
            ),
        ),
        "row linear",
        "the vjp returns 4 gradients, expected 3",
    ),
    "sum on one rank alone": Mutant(
        (("y, _ = reduce(comm, x @ W)", "y = x @ W if comm.rank else reduce(comm, x @ W)[0]"),),
        "row linear",
        "ranks make different calls of comm",
    ),
    "missing forward all-reduce": Mutant(
        (("y, _ = reduce(comm, x @ W)", "y = x @ W"),),
        "row linear",
        "an all-reduce is missing",
    ),
    "sum of the bias's gradient": Mutant(
        (
            (
                "lambda g: (g @ W.T, x.T @ g, g.sum(axis=0))",
                "lambda g: (g @ W.T, x.T @ g, summed(comm, g.sum(axis=0)))",
            ),
        ),
        "row linear",
        "the gradient of b",
    ),
    "no gradient through relu": Mutant(
        (("vjp_of_first(dh * (z > 0))", "vjp_of_first(dh)"),), "mlp", "the gradient of x"
    ),
    "hidden values gathered": Mutant(
        (
            (
                "    z, vjp_of_first = column_linear(comm, x, W1, b1)\n",
                "    z, vjp_of_first = column_linear(comm, x, W1, b1)\n    summed(comm, z)\n",
            ),
        ),
        "bytes of layers",
        "mlp: bytes",
    ),
    "gradient summed twice": Mutant(
        ((LINEAR, LINEAR.replace("x.T @ g", "(summed(comm, x), x.T @ g)[1]")),),
        "bytes of layers",
        "the vjp of column_linear: bytes",
    ),
    "only the local maximum": Mutant(
        ((HIGHEST, "    z = scores - highest[comm.rank][:, None]\n"),),
        "cross-entropy",
        "the maximum of its own scores",
    ),
    "max not subtracted": Mutant(
        ((HIGHEST, "    z = scores\n"),), "cross-entropy", "with scores near 1000: the result"
    ),
    "missing divide": Mutant(
        (("of_label).mean()), vjp", "of_label).sum()), vjp"),), "cross-entropy", "not the mean"
    ),
    "label looked up on every rank": Mutant(
        (
            (
                "rows, columns = np.flatnonzero(here), labels[here] - first",
                "rows, columns = np.arange(m), (labels - first) % c",
            ),
        ),
        "cross-entropy",
        "ranks that do not have it",
    ),
    "label clipped to the columns of a rank": Mutant(
        (
            (
                "rows, columns = np.flatnonzero(here), labels[here] - first",
                "rows, columns = np.arange(m), np.clip(labels - first, 0, c - 1)",
            ),
        ),
        "cross-entropy",
        "ranks that do not have it: its place is clipped",
    ),
    "label not masked in the vjp": Mutant(
        (
            (
                "        d[rows, columns] -= 1\n",
                "        d[np.arange(m), np.where(here, labels - first, 0)] -= 1\n",
            ),
        ),
        "cross-entropy",
        "the vjp subtracts 1 for a label on ranks that do not have it: its place is 0 there",
    ),
    "sum of one rank's exponentials": Mutant(
        (("total, of_label = sums", "total, of_label = np.exp(z).sum(axis=1), sums[1]"),),
        "cross-entropy",
        "only this rank's exponentials",
    ),
    "gathers the scores": Mutant(
        (
            (
                "    highest = np.empty((comm.size, m))\n",
                "    every = np.zeros((comm.size, m, c))\n    every[comm.rank] = scores\n"
                "    comm.all_gather(every)\n    highest = np.empty((comm.size, m))\n",
            ),
        ),
        "bytes of cross-entropy",
        "are scores gathered?",
    ),
    "nothing is sent": Mutant(
        (
            ("    comm.all_gather(highest)", "    highest[:] = highest[comm.rank]"),
            ("    comm.all_reduce(sums)\n", ""),
        ),
        "bytes of cross-entropy",
        "the loss is",
    ),
    "scores not scaled": Mutant(
        (("@ k.transpose(0, 2, 1) / np.sqrt(d)", "@ k.transpose(0, 2, 1)"),),
        "attention",
        "not divided by sqrt(d)",
    ),
    "no mask": Mutant(
        (("np.where(np.tri(t, dtype=bool), scores, -np.inf)", "scores"),),
        "attention",
        "positions see later ones",
    ),
    "mask of earlier positions": Mutant(
        (("np.tri(t, dtype=bool)", "np.triu(np.ones((t, t), bool))"),),
        "attention",
        "positions see later ones, and not earlier ones",
    ),
    "gradient of the scores not scaled": Mutant(
        (
            (
                "(dp * p).sum(axis=2, keepdims=True)) / np.sqrt(d)",
                "(dp * p).sum(axis=2, keepdims=True))",
            ),
        ),
        "attention",
        "the vjp does not divide by sqrt(d)",
    ),
    "heads and positions swapped": Mutant(
        ((HEADS, HEADS.replace("(t, heads, d).transpose(1, 0, 2)", "(heads, t, d)")),),
        "attention",
        "columns of every position",
    ),
    "missing all-reduce of attention's input": Mutant(
        (("return sum_over_ranks(dx), *dW", "return dx, *dW"),),
        "attention",
        "an all-reduce is missing",
    ),
    "no gradient of Wo": Mutant(
        (("return sum_over_ranks(dx), *dW, a.T @ g", "return sum_over_ranks(dx), *dW"),),
        "training",
        "attention: 4 gradients, expected 5",
    ),
    "an all-reduce for each of q, k, v": Mutant(
        (
            ("dx += columns @ W.T", "dx += sum_over_ranks(columns @ W.T)"),
            ("return sum_over_ranks(dx), *dW", "return dx, *dW"),
        ),
        "bytes of attention",
        "the vjp of attention: bytes",
    ),
}
