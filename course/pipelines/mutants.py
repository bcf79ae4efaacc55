"""Wrong solutions of pipelines that the checks have to catch."""

from classroom import Mutant

MUTANTS = {
    "backward passes from the first on": Mutant(
        (("for i in reversed(range(m))]", "for i in range(m)]"),),
        "gpipe in order",
        "is F0 F1 B0 B1, expected F0 F1 B1 B0",
    ),
    "one list for all ranks": Mutant(
        (("        ranks.append(forward + [", "        ranks.extend(forward + ["),),
        "gpipe in order",
        "is not a list of",
    ),
    "a backward pass less": Mutant(
        (("for i in range(m - ahead, m)]", "for i in range(m - ahead + 1, m)]"),),
        "1f1b proved",
        "has 1 passes, expected 2: F0",
    ),
    "more forward passes than micro-batches": Mutant(
        (("min(p - 1 - r, m)", "p - 1 - r"),),
        "1f1b proved",
        "one_f_one_b(3, 1) has 4 passes, expected 2",
    ),
    "backward before forward": Mutant(
        (("[Op(Kind.F, i, r), Op(Kind.B, i - ahead, r)]", "[Op(Kind.B, i, r), Op(Kind.F, i, r)]"),),
        "1f1b proved",
        "B0 comes without F0 before it",
    ),
    "a deadlock: the first stage waits for gradients that need its next output": Mutant(
        (("ahead = min(p - 1 - r, m)", "ahead = 0 if r == 0 else min(p - r, m)"),),
        "1f1b proved",
        "deadlock: ranks wait at B0.0 (pp 0",
    ),
    "the stage of another rank": Mutant(
        (("ops = [Op(Kind.F, i, r)", "ops = [Op(Kind.F, i, 0)"),), "1f1b proved", "expected 1"
    ),
    "a forward pass too far ahead": Mutant(
        (("min(p - 1 - r, m)", "min(p - r, m)"),), "1f1b memory", "at once, expected 1"
    ),
    "as early as it goes": Mutant(
        (("min(p - 1 - r, m)", "m"),), "1f1b memory", "holds 2 micro-batches at once, expected 1"
    ),
    "one micro-batch at a time": Mutant(
        (("min(p - 1 - r, m)", "0"),), "1f1b bubble", "one_f_one_b(2, 2) takes 12"
    ),
    "the bubble as a share of the step": Mutant(
        (("(p - 1) / m", "(p - 1) / (m + p - 1)"),), "formulas", "bubble(2, 1) is 0.5, expected 1"
    ),
    "1f1b holds p everywhere": Mutant(
        (("min(p - r, m)", "min(p, m)"),), "formulas", 'held("1f1b", 2, 2, 1) is 2, expected 1'
    ),
    "the gradient of the wrong micro-batch": Mutant(
        (
            ("kept[i] = x, y", "kept[i] = newest = x, y"),
            ("stage.backward(x, y, gy)", "stage.backward(*newest, gy)"),
        ),
        "run 1f1b",
        "backward gets the input of micro-batch 1, expected that of micro-batch 0",
    ),
    "an order of its own": Mutant(
        (("for op in passes:", "for op in sorted(passes, key=lambda op: op.kind.value == 'B'):"),),
        "run one by one",
        "step 1: forward is called, expected B0",
    ),
    "missing divide": Mutant(
        (("(y - targets[i]) / rows", "y - targets[i]"),), "run gpipe", "times too large"
    ),
    "the mean of means": Mutant(
        (("(y - targets[i]) / rows", "(y - targets[i]) / len(y) / len(inputs)"),),
        "run 1f1b",
        "the mean of micro-batch means: divide by the rows of the whole step",
    ),
    "one buffer for all activations": Mutant(
        (
            ("    sent = []\n", "    sent, buffer = [], np.empty((9, inputs[0].shape[1]))\n"),
            ("x = np.empty_like(inputs[i])", "x = buffer[: len(inputs[i])]"),
        ),
        "run gpipe",
        "backward gets",
    ),
    "sends that block": Mutant(
        (
            ("sent.append(comm.isend(y, r + 1, 2 * i))", "comm.send(y, r + 1, 2 * i)"),
            ("sent.append(comm.isend(gx, r - 1, 2 * i + 1))", "comm.send(gx, r - 1, 2 * i + 1)"),
        ),
        "run 1f1b",
        "hangs: rank 0 waits in send of",
    ),
    "requests are dropped": Mutant(
        (("    for request in sent:\n        request.wait()\n", ""),),
        "run gpipe",
        "never waited for",
    ),
    "messages for everybody": Mutant(
        (
            (
                "    for request in sent:\n",
                "    if r > 0:\n        sent.append(comm.isend(np.zeros(9), r - 1, 9999))\n"
                "    if r < last:\n        comm.recv(np.zeros(9), r + 1, 9999)\n"
                "    for request in sent:\n",
            ),
        ),
        "run ledger",
        "messages that it sends: 6, expected 5",
    ),
}
