"""Wrong solutions of all-reduce that the checks have to catch."""

from classroom import Mutant

MUTANTS = {
    "the sum is sent to all but the last": Mutant(
        (
            (
                "        comm.send(x, r)\n\n\ndef ring",
                "        comm.send(x, max(r - 1, 1))\n\n\ndef ring",
            ),
        ),
        "server sums",
        "hangs: rank 0 waits in send of 6 float64 to rank 1",
    ),
    "wrong root": Mutant(
        (
            (
                "        x += theirs\n    for r in range(1",
                "        theirs += x\n    for r in range(1",
            ),
        ),
        "server sums",
        "rank 0: of n = 4: x[0] is",
    ),
    "off by one in the ring": Mutant(
        (("into = chunk(r - t - 1)", "into = chunk(r - t - 2)"),),
        "ring sums",
        "2 ranks: rank 0: of n = 4: x[0]",
    ),
    "sends first": Mutant(
        (("sent = comm.isend(", "comm.send("), ("        sent.wait()\n", "")),
        "ring sums",
        "hangs: rank 0 waits in send of 2 float64 to rank 1 (adapters.py, line",
    ),
    "a round less": Mutant(
        (
            (
                "for t in range(2 * (p - 1)):\n        adds",
                "for t in range(2 * p - 3):\n        adds",
            ),
        ),
        "ring sums",
        "elements are wrong",
    ),
    "chunks of n // p": Mutant(
        (("return x[n * c // p : n * (c + 1) // p]", "return x[n // p * c : n // p * (c + 1)]"),),
        "ring sums",
        "of n = 29: x[28]",
    ),
    "adds in the second half": Mutant(
        (("adds = t < p - 1", "adds = t < p"),), "ring sums", "x[0] is"
    ),
    "nobody waits for the send": Mutant(
        (("        sent.wait()\n", ""),), "ring sums", "was never waited for"
    ),
    "whole buffers around the ring": Mutant(
        (
            (
                "        return x[n * c // p : n * (c + 1) // p]",
                "        return x if c >= 0 else x",
            ),
            ("adds = t < p - 1", "adds = t < p - 1 and not keep.append(x.copy())"),
            ("p, n, r = comm.size, len(x), comm.rank\n", "p, r, keep = comm.size, comm.rank, []\n"),
        ),
        "ring ledger",
        "bytes that it sends",
    ),
    "receives, then sends": Mutant(
        (
            (
                "sent = comm.isend(chunk(r - t), (r + 1) % p)\n"
                "        comm.recv(arrives, (r - 1) % p)",
                "copy, even = chunk(r - t).copy(), r % 2 == 0 and r < p - 1\n"
                "        sent = comm.irecv(arrives, (r - 1) % p)\n"
                "        if not even:\n            sent.wait()\n"
                "        comm.send(copy, (r + 1) % p)",
            ),
        ),
        "ring ledger",
        "rounds until the last rank is done",
    ),
    "the tree goes down in the wrong order": Mutant(
        (("for d in reversed(distances):", "for d in distances:"),), "tree sums", "x[0] is"
    ),
    "the tree forgets ranks past a power of two": Mutant(
        (
            (
                "1 << t for t in range((p - 1).bit_length())",
                "1 << t for t in range(p.bit_length() - 1)",
            ),
        ),
        "tree sums",
        "3 ranks: rank 0",
    ),
    "a star is no tree": Mutant(
        (
            (
                "distances = [1 << t for t in range((p - 1).bit_length())]",
                "return server_all_reduce(comm, x)",
            ),
        ),
        "tree ledger",
        "messages that it sends: 3, expected 2",
    ),
    "each rank adds in its own order": Mutant(
        (
            (
                "    distances = [1",
                "    mine = x.copy()\n"
                "    for d in range(1, p):\n"
                "        theirs = np.empty_like(x)\n"
                "        sent = comm.isend(mine, (r + d) % p)\n"
                "        comm.recv(theirs, (r - d) % p)\n"
                "        sent.wait()\n"
                "        x += theirs\n"
                "    return\n"
                "    distances = [1",
            ),
        ),
        "same bits",
        "let one rank add",
    ),
    "the ring's value adds too long": Mutant(
        (("(into, into + 1), t < p - 1)", "(into, into + 1), t < p)"),), "ring proved", "twice"
    ),
    "the ring's value waits for the wrong rank": Mutant(
        (("(r - 1) % p, (into", "(r + 1) % p, (into"),), "ring proved", "which waits for"
    ),
    "the tree's value branches on r": Mutant(
        (("    if up:", "    if up and r >= 0:"),), "tree proved", "branches on r"
    ),
    "the tree's value has one level less": Mutant(
        (("2 * levels - 1 - t)", "2 * levels - 2 - t)"),), "tree proved", "at(t, r, p) ends with"
    ),
    "a ring of whole buffers by formula": Mutant(
        (("nbytes / p * beta", "nbytes * beta"),), "cost by formula", "cost of ring"
    ),
    "log2 p rounded down": Mutant(
        (
            (
                "    levels = (p - 1).bit_length()\n    return {",
                "    levels = p.bit_length() - 1\n    return {",
            ),
        ),
        "cost by formula",
        "cost of tree, 5 ranks",
    ),
    "crossover without the ring's rounds": Mutant(
        (("(p - 1 - levels) * alpha", "levels * alpha"),),
        "crossover",
        "the crossover is 2 times too large",
    ),
    "the mean of the repetitions": Mutant(
        (("return min(times)", "return float(np.mean(times))"),),
        "stopwatch",
        "the first 1.3 s more",
    ),
    "the time of this rank": Mutant(
        (("times.append(took.max())", "times.append(took[comm.rank])"),),
        "stopwatch",
        "slowest rank",
    ),
    "the library's all-reduce": Mutant(
        (
            (
                "from nnmpi.collectives import Algorithm",
                "from nnmpi.collectives import ALGORITHMS, Algorithm",
            ),
        ),
        "server sums",
        "import of nnmpi.collectives.ALGORITHMS is refused",
    ),
    "the Comm's own all-reduce": Mutant(
        (("    p, n, r = comm.size, len(x), comm.rank", "    return comm.all_reduce(x)"),),
        "ring sums",
        "'Messages' object has no attribute 'all_reduce' (adapters.py, line",
    ),
}
