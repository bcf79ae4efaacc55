"""Wrong solutions of the assignment autograd, and the check and words that must catch each."""

from classroom import Mutant

ADDED = "gradients[id(p)] = gradients.get(id(p), 0) + vjp(g)"
NOT_COPIED = "gradients[id(p)] = gradients[id(p)] + vjp(g) if id(p) in gradients else vjp(g)"
LEAF = """        if not t.parents:
            t.grad = g if t.grad is None else t.grad + g
"""
LEAF_IN_PLACE = """        if not t.parents and t.grad is None:
            t.grad = g
        elif not t.parents:
            t.grad += g
"""
SUMMED = "    g = g.sum(axis=tuple(range(g.ndim - len(shape))))\n"
SHARED = "    if g.shape == shape:\n        return g\n"
WALK = "    order, seen, stack = [], set(), [(root, False)]\n"
RECURSIVE = """    order, seen, stack = [], set(), []

    def visit(t):
        if id(t) not in seen:
            seen.add(id(t))
            for p in t.parents:
                visit(p)
            order.append(t)

    visit(root)
"""
PUSHED = "stack += [(t, True), *((p, False) for p in t.parents)]"
FIRST_SIGHT = "order.insert(0, t)\n            stack += [(p, False) for p in t.parents]"
VJPS = "(lambda g: summed_to(a.data.shape, g), lambda g: summed_to(b.data.shape, g))"

MUTANTS = {
    "accumulate overwritten": Mutant(
        ((ADDED, "gradients[id(p)] = vjp(g)"),), "used twice", "gradients of three uses add up"
    ),
    "leaf overwritten by a second pass": Mutant(
        (("g if t.grad is None else t.grad + g", "g"),), "two passes", "a.grad after two calls"
    ),
    "gradient added in place to a shared array": Mutant(
        ((LEAF, LEAF_IN_PLACE), (ADDED, NOT_COPIED), (SUMMED, SHARED + SUMMED)),
        "two passes",
        "the same array as a.grad",
    ),
    "broadcast axes not summed": Mutant(
        ((VJPS, "(lambda g: g, lambda g: g)"),), "broadcasting", "has shape"
    ),
    "axes of length 1 not summed": Mutant(
        (("if n == 1)", "if n == 0)"),), "broadcasting", "has shape"
    ),
    "swapped axes": Mutant(
        (("g.transpose(np.argsort(axes))", "g.transpose(axes)"),), "transpose", "has shape"
    ),
    "order of first sight": Mutant(
        ((PUSHED, FIRST_SIGHT),), "order of visits", "gradients of all its uses"
    ),
    "recursive visits": Mutant(((WALK, RECURSIVE),), "deep chain", "use a list as stack"),
    "repeated rows lost": Mutant(
        (("np.add.at(total, index, g)", "total[index] += g"),),
        "take",
        "rows that occur several times",
    ),
    "missing divide": Mutant(
        (("return g * d / len(labels)", "return g * d"),), "cross_entropy", "the gradient"
    ),
    "max not subtracted": Mutant(
        ((" - scores.data.max(axis=1, keepdims=True)", ""),),
        "cross_entropy",
        "scores near 1000: the value",
    ),
    "gradient of relu is 1": Mutant(
        (("g * (a.data > 0)", "g"),), "relu", "gradient of argument 0["
    ),
    "gradient of relu at 0 is 1": Mutant(
        (("g * (a.data > 0)", "g * (a.data >= 0)"),), "relu", "is 1, expected 0"
    ),
    "no result": Mutant(
        (("return Tensor(np.log(a.data)", "Tensor(np.log(a.data)"),), "log", "the value is NoneType"
    ),
    "gradients of leaves lost": Mutant(
        (("            t.grad = g if", "            t.grade = g if"),),
        "training",
        "the gradient of parameter 0 is NoneType",
    ),
    "too long": Mutant(
        (("def backward(root, g):\n", "def backward(root, g):\n" + "    root = root\n" * 20),),
        "80 lines",
        "expected at most 80",
    ),
}
