"""Averages of weights: an exponential moving average by hand, and stochastic weight averaging."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    def __init__(self, model, decay=0.9):
        self.module = copy.deepcopy(model)
        self.module.eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for ema_v, model_v in zip(self.module.state_dict().values(), model.state_dict().values()):
            if ema_v.dtype.is_floating_point:
                ema_v.copy_(self.decay * ema_v + (1.0 - self.decay) * model_v)
            else:
                ema_v.copy_(model_v)


class EMAShadow:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {n: p.data.clone() for n, p in model.named_parameters() if p.requires_grad}
        self.backup = {}

    def update(self, model):
        for name, param in model.named_parameters():
            if param.requires_grad:
                self.shadow[name] = (1.0 - self.decay) * param.data + self.decay * self.shadow[name]

    def apply(self, model):
        for name, param in model.named_parameters():
            self.backup[name] = param.data
            param.data = self.shadow[name]

    def restore(self, model):
        for name, param in model.named_parameters():
            param.data = self.backup[name]


def evaluate(model, x, y):
    was_training = model.training
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(x), y).item()
    model.train(was_training)
    return loss


torch.manual_seed(5)
y = torch.randint(0, 3, (144,))
x = torch.randn(3, 10)[y] + 1.5 * torch.randn(144, 10)
loader = DataLoader(TensorDataset(x, y), batch_size=24, shuffle=True)
model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
ema = EMA(model)
shadow = EMAShadow(model, 0.8)
swa_model = AveragedModel(model)
ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
swa_start = 2
swa_scheduler = SWALR(optimizer, anneal_strategy="linear", anneal_epochs=2, swa_lr=0.05)
for epoch in range(5):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        ema.update(model)
        shadow.update(model)
        ema_model.update_parameters(model)
    if epoch > swa_start:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
    lr = optimizer.param_groups[0]["lr"]
    print(
        f"epoch {epoch}: lr {lr:.4f}, loss {evaluate(model, x, y):.5f}, "
        f"ema {evaluate(ema.module, x, y):.5f}, averaged {evaluate(ema_model, x, y):.5f}"
    )
update_bn(loader, swa_model)
print(f"swa {evaluate(swa_model, x, y):.5f}, averaged {int(swa_model.n_averaged)} times")
plain = evaluate(model, x, y)
shadow.apply(model)
print(f"with shadow {evaluate(model, x, y):.5f}")
shadow.restore(model)
print("restored:", evaluate(model, x, y) == plain)
