"""Wrong solutions of data-parallelism, and the check and words that must catch each."""

from classroom import Mutant

SHARE = "self.views[i] += self.weights[m] * gradient"
START = "while len(self.works) < len(self.buckets) and not self.pending[len(self.works)]:"
IN_ORDER = f"""        {START}
            self.works.append(self.comm.start(self.buffers[len(self.works)]))
"""
AS_THEY_COME = """        for k, bucket in enumerate(self.buckets):
            if i in bucket and not self.pending[k]:
                self.works.append(self.comm.start(self.buffers[k]))
"""
SCATTER = "g = self.comm.reduce_scatter(gradient)"

MUTANTS = {
    "rest of the batch dropped": Mutant(
        (("[n * i // count for", "[n // count * i for"),),
        "samples",
        "own_samples(11, 3",
    ),
    "batch cut over ranks first": Mutant(
        (
            ("parts(n, micro_batches), []", "parts(n, size), []"),
            (
                "start, inner = cuts[m], parts(cuts[m + 1] - cuts[m], size)",
                "start = cuts[rank]\n        inner = parts(cuts[rank + 1] - start, micro_batches)",
            ),
            (
                "slice(start + inner[rank], start + inner[rank + 1])",
                "slice(start + inner[m], start + inner[m + 1])",
            ),
        ),
        "samples",
        "own_samples(11, 3",
    ),
    "buckets over the limit": Mutant(
        (("nbytes[i] > room:", "room <= 0:"),), "buckets", "cut_buckets("
    ),
    "missing divide": Mutant(
        ((SHARE, "self.views[i] += gradient"),), "gradients", "the sum of the means"
    ),
    "average of averages": Mutant(
        (
            (
                "[count / total for count in samples]",
                "[1 / len(samples) / self.comm.size for _ in samples]",
            ),
        ),
        "gradients",
        "the mean of micro-batch means",  # as on one rank
    ),
    "each micro-batch has the same weight": Mutant(
        (
            (
                "[count / total for count in samples]",
                "[count / n / len(samples) for count, n in zip(samples, (3, 4, 4))]",
            ),
        ),
        "gradients",
        "the mean of micro-batch means",
    ),
    "accumulate overwritten": Mutant(
        ((SHARE, "self.views[i][...] = self.weights[m] * gradient"),),
        "gradients",
        "the last micro-batch alone",
    ),
    "weight of the wrong micro-batch": Mutant(
        (("self.weights[m]", "self.weights[-1]"),), "gradients", "the weight of the last one"
    ),
    "buffers of the last step": Mutant(
        (("            buffer[:] = 0", "            pass"),),
        "gradients",
        "the last step is still in it",
    ),
    "no sum over ranks": Mutant(
        ((f"        {START}", f"        while False and {START[6:]}"),),
        "gradients",
        "no sum over ranks",
    ),
    "nothing returned": Mutant(
        (("        return self.views", "        self.views"),), "gradients", "no list of 6 arrays"
    ),
    "sum of each micro-batch": Mutant(
        (("        if m < len(self.weights) - 1:\n            return\n", ""),),
        "overlap",
        "still to be added",
    ),
    "sums at the end": Mutant(
        (
            (IN_ORDER, ""),
            (
                "        for work in self.works:\n            work.wait()\n",
                "        for buffer in self.buffers:\n            self.comm.start(buffer).wait()\n",
            ),
        ),
        "overlap",
        "0 sums are started, expected 1",
    ),
    "sum of the first gradient": Mutant(
        (("            pending.discard(i)", "            pending -= {i, i - 1}"),),
        "overlap",
        "gradients that are not final",
    ),
    "waits in ready": Mutant(
        (
            (
                "self.works.append(self.comm.start(self.buffers[len(self.works)]))",
                "self.works.append(self.comm.start(self.buffers[len(self.works)]))\n"
                "            self.works[-1].wait()",
            ),
        ),
        "overlap",
        "waits for a sum",
    ),
    "no wait in finish": Mutant(
        (("            work.wait()", "            pass"),), "overlap", "before sum 0 was waited for"
    ),
    "order of arrival": Mutant(
        ((IN_ORDER, AS_THEY_COME),), "same order", "the order of cut_buckets on all ranks"
    ),
    "state of the wrong shard": Mutant(
        (
            (
                "self.values[self.part] -=",
                "n, part = self.values.size, self.part\n"
                "        self.values[n - part.stop : n - part.start] -=",
            ),
        ),
        "sharded Adam",
        "it did not change in this step",
    ),
    "no bias correction": Mutant(
        (("self.m / (1 - self.beta1**self.steps)", "self.m"),),
        "sharded Adam",
        "the step is 0.1 times",
    ),
    "no all-gather": Mutant(
        (("        self.comm.all_gather(self.values)\n", ""),),
        "sharded Adam",
        "it did not change in this step",
    ),
    "share instead of the sum": Mutant(
        ((SCATTER, "g = gradient[self.part]"),), "sharded Adam", "the share of one rank"
    ),
    "state of all parameters": Mutant(
        (
            ("np.zeros((2, self.part.stop - self.part.start))", "np.zeros((2, values.size))"),
            (SCATTER, "self.comm.all_reduce(gradient)\n        g = gradient"),
            ("self.values[self.part] -=", "self.values -="),
        ),
        "state",
        "the optimizer holds",
    ),
    "one array for both moments": Mutant(
        (
            (
                "np.zeros((2, self.part.stop - self.part.start))",
                "[np.zeros(self.part.stop - self.part.start)] * 2",
            ),
        ),
        "state",
        "the optimizer holds 1624 bytes of arrays, expected 3248",
    ),
    "all-reduce instead of reduce-scatter": Mutant(
        ((SCATTER, "self.comm.all_reduce(gradient)\n        g = gradient[self.part]"),),
        "bytes of ZeRO",
        "half for a reduce-scatter",
    ),
    "sum of each parameter twice": Mutant(
        (
            (
                "        return self.views\n",
                "        for view in self.views:\n            self.comm.all_reduce(view.copy())\n"
                "        return self.views\n",
            ),
        ),
        "bytes of sums",
        "bytes sent by all ranks",
    ),
}
