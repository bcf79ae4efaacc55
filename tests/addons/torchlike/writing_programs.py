"""Programs that write in place, as part of a graph, to memory that other tensors or arrays have.

program(n, w, x) returns what it computes with the library n from a leaf w and from x = 2 w - 0.9,
its names and views at the end.
"""

from collections.abc import Callable
from inspect import isfunction
from typing import Any

import numpy as np


def all_names_after_a_view(n: Any, w: Any, x: Any) -> Any:
    other, v = x, x.view(-1)
    x += w
    assert x is other
    return x, v * 1.0


def a_detached_tensor(n: Any, w: Any, x: Any) -> Any:
    d = x.detach()
    x *= w
    return x, d


def an_array(n: Any, w: Any, x: Any) -> Any:
    array = x.detach().numpy()
    x.sigmoid_()
    return x, n.tensor(array)


def the_array_of_a_constant(n: Any, w: Any, x: Any) -> Any:
    array = np.zeros((4, 3))
    y = n.from_numpy(array)
    y.add_(w, alpha=2)
    return y, n.tensor(array)


def a_row_and_what_was_read(n: Any, w: Any, x: Any) -> Any:
    v, u = x[1], x[:, 1] * 1
    v *= w[0]
    return x, v, u


def two_views_that_overlap(n: Any, w: Any, x: Any) -> Any:
    a, b = x[:2], x[1:]
    a += w[2:]
    b.mul_(w[:3])
    return x, a * 1, b * 1


def rows_that_were_read(n: Any, w: Any, x: Any) -> Any:
    y = n.zeros(4, 3, dtype=n.float64)
    for i in range(4):
        y[i] += w[i]
        if i:
            y[i] += 2 * y[i - 1]
    return y


def columns_of_rows_before(n: Any, w: Any, x: Any) -> Any:
    y = n.zeros(4, 3, dtype=n.float64)
    for i in range(4):
        y[i] = w[i] + (3 * y[i - 1] if i else 0)
    return y


def an_older_result_that_needs_no_old_value(n: Any, w: Any, x: Any) -> Any:
    y, _ = x * 2, x[0]
    x += w
    return x, y


def a_view_alone(n: Any, w: Any, x: Any) -> Any:
    v = (x * 1).view(2, 6)
    v += 1
    v[0] *= 3
    return v


def a_view_whose_data_are_assigned_what_was_written(n: Any, w: Any, x: Any) -> Any:
    v = x[:2]
    v.data += 1
    v.mul_(3)
    return x, v


def parts_whose_whole_has_no_name(n: Any, w: Any, x: Any) -> Any:
    a, b = (lambda whole: (whole[:, :1], whole[:, 1:]))(w * 2)
    a *= 3
    b += a
    return a, b


def a_transpose(n: Any, w: Any, x: Any) -> Any:
    t = x.T
    t[0] += w[:, 2]
    t.mul_(2)
    return x, t


def every_second_element(n: Any, w: Any, x: Any) -> Any:
    v = x.view(2, 6)[:, ::2]
    v.exp_()
    return x, v


def a_mask(n: Any, w: Any, x: Any) -> Any:
    v = x.T
    x[x > 0] = w[0, 1]
    return x.masked_fill_(x < -0.5, 3.0), v


def numbers(n: Any, w: Any, x: Any) -> Any:
    x[0].fill_(3)
    x[1].zero_()
    x[:, 0] = 3.0
    x[1, 2] = w[0, 0] * w[1, 1]
    return x


def constants(n: Any, w: Any, x: Any) -> Any:
    a, b = n.ones(4, 3, dtype=n.float64), n.ones(4, 3, dtype=n.float64)
    return a.add_(w, alpha=2).mul_(w), b.lerp_(2 * w, w)


def a_view_of_a_constant(n: Any, w: Any, x: Any) -> Any:
    y = n.zeros(4, 3, dtype=n.float64)
    v = y[1:]
    y[1] = w[0]
    return y, v * 1


def scattered_rows(n: Any, w: Any, x: Any) -> Any:
    y, z = n.zeros(5, 3, dtype=n.float64), n.ones(5, 3, dtype=n.float64)
    v = y[0]
    y.index_add_(0, n.tensor([0, 2, 2, 4]), w)
    z.scatter_add_(0, n.tensor([[0, 1, 2], [0, 4, 4]]), w[:2])
    return y, v * 1, z


def an_expanded_view(n: Any, w: Any, x: Any) -> Any:
    v = x[0].expand(2, 3)
    x *= 2
    return x, v * 1


def one_write_after_the_other(n: Any, w: Any, x: Any) -> Any:
    v = x[0]
    v *= w[1]
    v *= w[2]
    x[3] += v
    return x


def a_sum_whose_values_are_kept(n: Any, w: Any, x: Any) -> Any:
    total, kept = n.zeros((), dtype=n.float64), []
    for i in range(4):
        total += w[i].sum()
        kept.append(total.detach())
    return total, *kept


def a_constant_that_no_gradient_needs(n: Any, w: Any, x: Any) -> Any:
    ones = n.ones(4, 3, dtype=n.float64)
    y = w + ones
    ones.zero_()
    return y


def a_contiguous_copy_of_a_transpose(n: Any, w: Any, x: Any) -> Any:
    c = x.T.contiguous()
    c.zero_()
    return x, c


def a_layer_in_place(n: Any, w: Any, x: Any) -> Any:
    v, d = x.view(-1), x.detach()
    y = n.nn.LeakyReLU(0.2, inplace=True)(x)
    return y, x, v * 1, d


def layers_in_place(n: Any, w: Any, x: Any) -> Any:
    kept = []
    for layer in (n.nn.ELU(0.5, True), n.nn.SiLU(True), n.nn.Hardswish(True), n.nn.ReLU(True)):
        kept.append(x)
        x = layer(x) * 1.5
    return x, *kept


def a_view_of_what_was_written_and_has_no_name(n: Any, w: Any, x: Any) -> Any:
    def view(whole: Any) -> Any:
        v = whole[:, ::2]
        whole.add_(w)
        return v

    return view(w * 2) * 1


def a_detached_tensor_that_is_written(n: Any, w: Any, x: Any) -> Any:
    v, d = x[0], x.detach()
    u = d[0]
    d.mul_(w)
    return x, d, v * 1, u * 1


def a_state_that_is_detached_at_each_step(n: Any, w: Any, x: Any) -> Any:
    h, kept = n.zeros(3, dtype=n.float64), []
    for i in range(3):
        h = h.detach()
        h[:1] += w[i, 0]
        h = h * w[i]
        kept.append(h)
    return kept


def a_view_in_place_after_its_base(n: Any, w: Any, x: Any) -> Any:
    v, u = x[:, ::2], x[:, 1]
    x.add_(w, alpha=2)
    n.nn.functional.leaky_relu(v, 0.2, inplace=True)
    return x, v * 1, u * 1


def a_copy_by_reshape(n: Any, w: Any, x: Any) -> Any:
    c = x.T.reshape(-1)
    c[..., 0] *= w[0, 1]
    row = c.reshape(3, 4)[1]
    row *= 3
    return x, c


def a_sum_that_becomes_zero(n: Any, w: Any, x: Any) -> Any:
    total = w.sum()
    total.zero_()
    total += (w * w).sum()
    return total


def data_that_is_written(n: Any, w: Any, x: Any) -> Any:
    d, c = x.data, n.ones(4, 3, dtype=n.float64) - 2
    d += 1
    d[0].mul_(3)
    n.nn.functional.relu(c.data, inplace=True)
    return x * w, d, c


PROGRAMS: list[Callable[[Any, Any, Any], Any]] = [
    f for f in [*vars().values()] if isfunction(f) and f.__module__ == __name__
]
DETACHED = (
    *(a_detached_tensor_that_is_written, a_state_that_is_detached_at_each_step),
    data_that_is_written,
)
"""Those with values that depend on w without a gradient."""
