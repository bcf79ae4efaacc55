"""Autograd functions of one's own: a straight-through sign, a clamp, a linear layer, swish."""

import math

import torch
from torch import nn
from torch.autograd import Function
from torch.nn.parameter import Parameter


class BinarySign(Function):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return torch.where(input >= 0, torch.ones_like(input), -torch.ones_like(input))

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[input.abs() > 1] = 0
        return grad_input


class LinearFunction(Function):
    @staticmethod
    def forward(ctx, input, weight, bias=None):
        ctx.save_for_backward(input, weight, bias)
        output = input.mm(weight.t())
        if bias is not None:
            output += bias.unsqueeze(0).expand_as(output)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        input, weight, bias = ctx.saved_tensors
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_input = grad_output.mm(weight)
        if ctx.needs_input_grad[1]:
            grad_weight = grad_output.t().mm(input)
        if bias is not None and ctx.needs_input_grad[2]:
            grad_bias = grad_output.sum(0)
        return grad_input, grad_weight, grad_bias


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.beta = beta
        sigma = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, sigma)
        return x * sigma

    @staticmethod
    def backward(ctx, grad):
        x, sigma = ctx.saved_tensors
        return grad * (sigma + ctx.beta * x * sigma * (1 - sigma)), None


class MyLinear(nn.Module):
    def __init__(self, in_features, out_features, bias=True):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(torch.empty(out_features, in_features))
        if bias:
            self.bias = Parameter(torch.empty(out_features))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        stdv = 1.0 / math.sqrt(self.weight.size(1))
        self.weight.data.uniform_(-stdv, stdv)
        if self.bias is not None:
            self.bias.data.uniform_(-stdv, stdv)

    def forward(self, input):
        return LinearFunction.apply(input, self.weight, self.bias)

    def extra_repr(self):
        return "in_features={}, out_features={}, bias={}".format(
            self.in_features, self.out_features, self.bias is not None
        )


class BinaryNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = MyLinear(12, 24)
        self.fc2 = MyLinear(24, 24, bias=False)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.fc3 = MyLinear(24, 3)

    def forward(self, x):
        x = Swish.apply(self.fc1(x), 1.5)
        x = BinarySign.apply(self.fc2(x)) * self.scale
        return self.fc3(x)


torch.manual_seed(0)
input = (
    torch.randn(4, 5, dtype=torch.double, requires_grad=True),
    torch.randn(3, 5, dtype=torch.double, requires_grad=True),
)
print("gradcheck:", torch.autograd.gradcheck(LinearFunction.apply, input, eps=1e-6, atol=1e-4))
net = BinaryNet()
print(net)
for name, param in net.named_parameters():
    print(name, list(param.size()))
x = torch.randn(64, 12)
y = (x[:, :3] + 0.1 * torch.randn(64, 3)).argmax(dim=1)
optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
loss_fn = nn.CrossEntropyLoss(reduction="none")
for step in range(20):
    loss = loss_fn(net(x), y)
    optimizer.zero_grad()
    loss.mean().backward()
    optimizer.step()
    if step % 5 == 0:
        grads = {n: round(p.grad.norm().item(), 4) for n, p in net.named_parameters()}
        print(f"step {step}: loss {loss.mean().item():.4f} max {loss.max().item():.4f} {grads}")
print("scale: %.4f" % net.scale.item())
