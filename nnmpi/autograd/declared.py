"""Declares for type checkers the tensor methods of the add-on `tensor-functions`.

Tensors find these methods in the table `tensor_methods` of `addons.py`.
"""

from typing import Any

_METHOD: Any = None
abs_ = add_ = addcdiv_ = addcmul_ = argsort = bernoulli = bernoulli_ = bincount = _METHOD
ceil = ceil_ = clamp_ = clamp_max_ = clamp_min_ = copy_ = cos_ = diag = div_ = _METHOD
equal = exp_ = exponential_ = fill_ = fill_diagonal_ = flip = floor = floor_ = _METHOD
gather = histc = index_add = index_add_ = index_select = kron = kthvalue = lerp_ = _METHOD
log_ = logical_and = logical_not = logical_or = logical_xor = logsumexp = _METHOD
masked_fill_ = median = mode = mul_ = multinomial = narrow = neg_ = new_empty = _METHOD
new_full = new_ones = new_tensor = new_zeros = nonzero = norm = normal_ = outer = _METHOD
pow_ = quantile = reciprocal = relu_ = remainder_ = repeat = repeat_interleave = _METHOD
roll = round = round_ = rsqrt = scatter = scatter_ = scatter_add = scatter_add_ = _METHOD
select = sigmoid_ = sign = sin_ = sort = sqrt_ = square = sub_ = take_along_dim = _METHOD
tanh_ = tile = topk = trunc = type = type_as = unbind = unflatten = unfold = _METHOD
uniform_ = unique = zero_ = _METHOD
