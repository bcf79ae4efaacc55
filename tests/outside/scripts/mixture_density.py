"""A mixture density network: several answers for one input."""

import torch
from torch import nn, optim
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from torch.utils.data import DataLoader, TensorDataset


def make_data(n=256):
    """The inverse of a function that is not one-to-one."""
    y = torch.rand(n, 1)
    x = y + 0.3 * torch.sin(2 * torch.pi * y) + torch.empty(n, 1).uniform_(-0.1, 0.1)
    return x, y


class MDN(nn.Module):
    def __init__(self, in_dim, out_dim, n_components=4, hidden_dim=24):
        super().__init__()
        self.n_components, self.out_dim = n_components, out_dim
        self.backbone = nn.Sequential(
            nn.Linear(in_dim, hidden_dim),
            nn.ELU(inplace=True),
            nn.Linear(hidden_dim, hidden_dim),
            nn.ELU(inplace=True),
        )
        self.pi = nn.Linear(hidden_dim, n_components)
        self.mu = nn.Linear(hidden_dim, n_components * out_dim)
        self.sigma = nn.Sequential(
            nn.Linear(hidden_dim, n_components * out_dim), nn.Softplus(beta=1)
        )

    def forward(self, x):
        h = self.backbone(x)
        mu = self.mu(h).view(-1, self.n_components, self.out_dim)
        sigma = self.sigma(h).reshape(-1, self.n_components, self.out_dim) + 1e-3
        mix = Categorical(logits=self.pi(h))
        comp = Independent(Normal(mu, sigma), 1)
        return MixtureSameFamily(mix, comp)


def logsumexp_nll(dist, y):
    """The same loss, from the parts of the mixture."""
    log_pi = torch.log_softmax(dist.mixture_distribution.logits, dim=-1)
    normal = dist.component_distribution.base_dist
    log_prob = normal.log_prob(y.unsqueeze(1)).sum(-1)
    return -torch.logsumexp(log_pi + log_prob, dim=-1).mean()


torch.manual_seed(9)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x, y = make_data()
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
model = MDN(1, 1).to(device)
optimizer = optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.99))
for epoch in range(8):
    total = 0.0
    for xb, yb in loader:
        dist = model(xb.to(device))
        loss = -dist.log_prob(yb.to(device)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: negative log-likelihood {total / len(loader):.4f}")

model.eval()
with torch.no_grad():
    dist = model(torch.tensor([[0.2], [0.5], [0.8]]))
    probs = dist.mixture_distribution.probs
    print("weights add up to", probs.sum(-1).tolist())
    print("means", [f"{m:.3f}" for m in dist.mean.squeeze(-1).tolist()])
    print("standard deviations", [f"{s:.3f}" for s in dist.stddev.squeeze(-1).tolist()])
    print(f"other form {logsumexp_nll(model(x), y).item():.4f}")
    entropy = dist.mixture_distribution.entropy()
    print("entropy", entropy.numpy().round(3))
    kl = torch.distributions.kl_divergence(
        Normal(torch.zeros(2), torch.ones(2)), Normal(torch.ones(2), 2 * torch.ones(2))
    )
    print("divergence", kl)
    component = dist.mixture_distribution.sample((5,))
    print("components drawn", tuple(component.shape), component.dtype)
