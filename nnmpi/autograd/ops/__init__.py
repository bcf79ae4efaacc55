"""Ops: functions of arrays that return a value and one vjp (vector-Jacobian product) per argument.

                 value = op(a, b)
    forward      a ──┐
                     ├──► op ──► value
                 b ──┘
    backward                      g  ──► prepare(g, needs) ──► shared
                 vjps[0](shared, out) ──► da
                 vjps[1](shared, out) ──► db

Ops never see tensors, so each is tested and timed on arrays alone. With one vjp for each argument,
a gradient that is not needed is never computed (that of the first layer's input), and the gradient
of an input can be computed at another time than that of a weight. `prepare` computes what vjps
share, such as a ReLU mask or a gradient in Winograd's domain. It is pure, since it is called twice
if a backward pass computes gradients of inputs first and those of weights later. `out` is where the
caller wants the result: products of matrices write straight into the gradient buffer, and so does a
`prepare` that is given it (`PlacedGradients`).
"""
