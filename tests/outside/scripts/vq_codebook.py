"""A vector-quantised autoencoder whose codebook, in buffers, is a moving average; running norms."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class RunningNorm(nn.Module):
    def __init__(self, size, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))
        self.register_buffer("count", torch.tensor(0, dtype=torch.long))
        self.register_buffer("last", None, persistent=False)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.mean = (1 - self.momentum) * self.mean + self.momentum * x.mean(0)
                self.std.mul_(1 - self.momentum).add_(x.std(0), alpha=self.momentum)
                self.count += x.size(0)
                self.last = x[-1].clone()
        return (x - self.mean) / self.std.clamp(min=1e-3)


class Codebook(nn.Module):
    def __init__(self, codes, size, decay=0.9):
        super().__init__()
        self.decay = decay
        embed = torch.randn(size, codes)
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.ones(codes))
        self.register_buffer("embed_avg", embed.clone())

    def forward(self, z):
        distance = (
            z.pow(2).sum(1, keepdim=True)
            - 2 * z @ self.embed
            + self.embed.pow(2).sum(0, keepdim=True)
        )
        ids = distance.argmin(1)
        onehot = F.one_hot(ids, self.embed.size(1)).type(z.dtype)
        quantized = self.embed.transpose(0, 1)[ids]
        if self.training:
            self.cluster_size.data.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
            self.embed_avg.data.mul_(self.decay).add_(
                z.detach().transpose(0, 1) @ onehot, alpha=1 - self.decay
            )
            n = self.cluster_size.sum()
            cluster_size = (self.cluster_size + 1e-5) / (n + self.embed.shape[1] * 1e-5) * n
            self.embed.data.copy_(self.embed_avg / cluster_size.unsqueeze(0))
        loss = (quantized.detach() - z).pow(2).mean()
        return z + (quantized - z).detach(), loss, ids


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RunningNorm(8)
        self.encoder = nn.Linear(8, 4)
        self.codebook = Codebook(16, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x):
        x = self.norm(x)
        z, commitment, ids = self.codebook(self.encoder(x))
        return self.decoder(z), x, commitment, ids


torch.manual_seed(0)
data = torch.randn(4, 8)[torch.randint(0, 4, (256,))] + 0.3 * torch.randn(256, 8)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(4):
    total = 0.0
    for batch in data.split(32):
        optimizer.zero_grad()
        output, target, commitment, ids = model(batch)
        loss = F.mse_loss(output, target) + 0.25 * commitment
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(
        f"epoch {epoch}: loss {total / 8:.4f}, {model.codebook.cluster_size.gt(1.0).sum()} codes in use"
    )

norm = model.norm
print(
    f"mean {norm.mean.mean():.4f}, std {norm.std.std():.4f}, {norm.count} rows, last {norm.last.max():.4f}"
)
values, codes = model.codebook.cluster_size.topk(3)
print("largest clusters", values.tolist())
print(sorted(model.state_dict()), [name for name, _ in model.named_buffers()])
print(sum(b.numel() for b in model.buffers()), model.codebook.embed.T.shape)
model.eval()
with torch.no_grad():
    before = norm.mean.clone()
    output, target, _, ids = model(data)
    print(f"eval {F.mse_loss(output, target):.4f}", bool((before == norm.mean).all()))
norm.std.fill_(1.0)
norm.mean[0] = 3.0
copy = Model()
copy.load_state_dict(model.state_dict())
print(f"{copy.norm.mean[0]:.1f} {copy.norm.std.sum():.1f} {copy.norm.count}")
