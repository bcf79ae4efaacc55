"""Solution of the assignment tensor-parallelism."""

import numpy as np


def summed(comm, x):
    total = x.copy()
    comm.all_reduce(total)
    return total


def copy(comm, x):
    return x, lambda g: summed(comm, g)


def reduce(comm, x):
    return summed(comm, x), lambda g: g


def column_linear(comm, x, W, b):
    x, sum_over_ranks = copy(comm, x)
    return x @ W + b, lambda g: (sum_over_ranks(g @ W.T), x.T @ g, g.sum(axis=0))


def row_linear(comm, x, W, b):
    y, _ = reduce(comm, x @ W)
    return y + b, lambda g: (g @ W.T, x.T @ g, g.sum(axis=0))


def mlp(comm, x, W1, b1, W2, b2):
    z, vjp_of_first = column_linear(comm, x, W1, b1)
    y, vjp_of_second = row_linear(comm, np.maximum(z, 0), W2, b2)

    def vjp(g):
        dh, dW2, db2 = vjp_of_second(g)
        dx, dW1, db1 = vjp_of_first(dh * (z > 0))
        return dx, dW1, db1, dW2, db2

    return y, vjp


def cross_entropy(comm, scores, labels, first):
    m, c = scores.shape
    highest = np.empty((comm.size, m))
    highest[comm.rank] = scores.max(axis=1)
    comm.all_gather(highest)  # a number for each rank and row: the sum of maxima would not help
    z = scores - highest.max(axis=0)[:, None]
    here = (first <= labels) & (labels < first + c)
    rows, columns = np.flatnonzero(here), labels[here] - first
    sums = np.zeros((2, m))
    sums[0] = np.exp(z).sum(axis=1)
    sums[1, rows] = z[rows, columns]
    comm.all_reduce(sums)
    total, of_label = sums

    def vjp(g):
        d = np.exp(z) / total[:, None]
        d[rows, columns] -= 1
        return g * d / m

    return float((np.log(total) - of_label).mean()), vjp


def attention(comm, x, Wq, Wk, Wv, Wo, heads):
    t, d = len(x), Wq.shape[1] // heads if heads else 1
    x, sum_over_ranks = copy(comm, x)
    q, k, v = ((x @ W).reshape(t, heads, d).transpose(1, 0, 2) for W in (Wq, Wk, Wv))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(d)
    scores = np.where(np.tri(t, dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(axis=2, keepdims=True))
    p /= p.sum(axis=2, keepdims=True)
    a = (p @ v).transpose(1, 0, 2).reshape(t, heads * d)
    y, _ = reduce(comm, a @ Wo)

    def vjp(g):
        da = (g @ Wo.T).reshape(t, heads, d).transpose(1, 0, 2)
        dp = da @ v.transpose(0, 2, 1)
        ds = p * (dp - (dp * p).sum(axis=2, keepdims=True)) / np.sqrt(d)
        each = (ds @ k, Wq), (ds.transpose(0, 2, 1) @ q, Wk), (p.transpose(0, 2, 1) @ da, Wv)
        dx, dW = np.zeros_like(x), []
        for gradient, W in each:
            columns = gradient.transpose(1, 0, 2).reshape(t, heads * d)
            dx += columns @ W.T
            dW.append(x.T @ columns)
        return sum_over_ranks(dx), *dW, a.T @ g

    return y, vjp
