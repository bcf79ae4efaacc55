"""Declares the tensor methods of `torchlike`, which tensors find in a table, for type checkers."""

from typing import Any

_METHOD: Any = None
abs_ = add_ = addcdiv = addcdiv_ = addcmul = addcmul_ = argsort = atan = atan_ = _METHOD
bernoulli = bernoulli_ = bincount = ceil = ceil_ = clamp_ = clamp_max_ = clamp_min_ = _METHOD
copy_ = cos_ = cumprod = cumprod_ = cumsum_ = diag = div = div_ = equal = exp_ = _METHOD
exponential_ = fill_ = fill_diagonal_ = flip = floor = floor_ = gather = histc = _METHOD
index_add = index_add_ = index_select = is_contiguous = is_floating_point = kron = _METHOD
kthvalue = lerp = lerp_ = log2 = log2_ = log_ = logical_and = logical_not = logical_or = _METHOD
logical_xor = logsumexp = masked_fill_ = masked_select = median = mode = moveaxis = _METHOD
movedim = mul_ = multinomial = nan_to_num = nan_to_num_ = narrow = neg_ = new_empty = _METHOD
new_full = new_ones = new_tensor = new_zeros = nonzero = norm = normal_ = outer = pow_ = _METHOD
quantile = reciprocal = relu_ = remainder_ = repeat = repeat_interleave = retain_grad = _METHOD
roll = round = round_ = rsqrt = scatter = scatter_ = scatter_add = scatter_add_ = _METHOD
scatter_reduce = scatter_reduce_ = select = sigmoid_ = sign = sin_ = sort = sqrt_ = _METHOD
square = stride = sub_ = take_along_dim = tanh_ = tile = topk = tril = triu = trunc = _METHOD
type = type_as = unbind = unflatten = unfold = uniform_ = unique = zero_ = _METHOD
