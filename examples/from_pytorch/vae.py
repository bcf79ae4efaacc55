"""A variational autoencoder of digits: python examples/from_pytorch/vae.py"""

import nnmpi as torch
import nnmpi.nn as nn
import nnmpi.nn.functional as F
import nnmpi.optim as optim
from nnmpi.data import load
from nnmpi.utils.data import DataLoader, TensorDataset

LATENT, EPOCHS = 6, 5

torch.manual_seed(0)
device = torch.device("cpu")


class VAE(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, hidden), nn.ReLU())
        self.to_mean = nn.Linear(hidden, LATENT)
        self.to_log_var = nn.Linear(hidden, LATENT)
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, hidden), nn.ReLU(), nn.Linear(hidden, 64), nn.Sigmoid()
        )

    def forward(self, x):
        h = self.encoder(x.view(x.size(0), -1))
        mean, log_var = self.to_mean(h), self.to_log_var(h)
        std = torch.exp(0.5 * log_var)
        z = mean + std * torch.randn_like(std)
        return self.decoder(z), mean, log_var


def elbo(recon, x, mean, log_var):
    likelihood = F.binary_cross_entropy(recon, x.flatten(1), reduction="sum")
    divergence = 0.5 * torch.sum(mean.pow(2) + log_var.exp() - log_var - 1)
    return (likelihood + divergence) / x.size(0)


digits = load("digits", seed=0).train
images = torch.tensor(digits.x).float() / 16
labels = torch.tensor(digits.y)
loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)

model = VAE().to(device)
optimizer = optim.Adam(model.parameters(), lr=2e-3)
losses = []
for epoch in range(EPOCHS):
    model.train()
    for x, _ in loader:
        x = x.to(device)
        optimizer.zero_grad()
        recon, mean, log_var = model(x)
        loss = elbo(recon, x, mean, log_var)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch + 1}   loss {sum(losses[-len(loader) :]) / len(loader):.2f}")

model.eval()
with torch.no_grad():
    samples = model.decoder(torch.randn(8, LATENT, device=device)).cpu().view(8, 8, 8)
print("".join("#" if p > 0.5 else "." for p in samples[0].flatten().tolist()))
torch.save(model.state_dict(), "vae.safetensors")
