"""Solution of the assignment data-parallelism."""

import numpy as np


def parts(n, count):
    """The bounds of `count` consecutive parts of n."""
    return [n * i // count for i in range(count + 1)]


def own_samples(n, micro_batches, rank, size):
    cuts, slices = parts(n, micro_batches), []
    for m in range(micro_batches):
        start, inner = cuts[m], parts(cuts[m + 1] - cuts[m], size)
        slices.append(slice(start + inner[rank], start + inner[rank + 1]))
    return slices


def cut_buckets(nbytes, most):
    buckets, room = [], 0
    for i in reversed(range(len(nbytes))):
        if not buckets or nbytes[i] > room:
            buckets.append([])
            room = most
        buckets[-1].append(i)
        room -= nbytes[i]
    return buckets


class GradientSync:
    """A flat buffer for each bucket; a view of it for each parameter."""

    def __init__(self, comm, shapes, most):
        self.comm, self.views, self.buffers = comm, [None] * len(shapes), []
        sizes = [int(np.prod(shape)) for shape in shapes]
        self.buckets = cut_buckets([8 * size for size in sizes], most)
        for bucket in self.buckets:
            self.buffers.append(buffer := np.zeros(sum(sizes[i] for i in bucket)))
            start = 0
            for i in bucket:
                self.views[i] = buffer[start : start + sizes[i]].reshape(shapes[i])
                start += sizes[i]

    def begin(self, samples, total):
        self.weights = [count / total for count in samples]
        self.pending = [set(bucket) for bucket in self.buckets]
        self.works = []
        for buffer in self.buffers:
            buffer[:] = 0

    def ready(self, m, i, gradient):
        self.views[i] += self.weights[m] * gradient
        if m < len(self.weights) - 1:
            return
        for pending in self.pending:
            pending.discard(i)
        # in the order of the buckets on every rank, whichever is complete first
        while len(self.works) < len(self.buckets) and not self.pending[len(self.works)]:
            self.works.append(self.comm.start(self.buffers[len(self.works)]))

    def finish(self):
        for work in self.works:
            work.wait()
        return self.views


class ShardedAdam:
    """The moments m and v of this rank's part."""

    def __init__(self, comm, values, lr, beta1=0.9, beta2=0.999, eps=1e-8):
        self.comm, self.values, self.lr, self.eps = comm, values, lr, eps
        self.beta1, self.beta2, self.steps = beta1, beta2, 0
        self.part = comm.chunk(values.size)
        self.m, self.v = np.zeros((2, self.part.stop - self.part.start))

    def step(self, gradient):
        g = self.comm.reduce_scatter(gradient)
        self.steps += 1
        self.m[:] = self.beta1 * self.m + (1 - self.beta1) * g
        self.v[:] = self.beta2 * self.v + (1 - self.beta2) * g * g
        m = self.m / (1 - self.beta1**self.steps)
        v = self.v / (1 - self.beta2**self.steps)
        self.values[self.part] -= self.lr * m / (np.sqrt(v) + self.eps)
        self.comm.all_gather(self.values)
