"""A convolutional autoencoder that takes noise from images."""

import math
import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH, NOISE = 3, 16, 0.3
torch.manual_seed(42)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ConvAutoencoder(nn.Module):
    def __init__(self, base=8):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, base, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(base, base * 2, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(base * 2 * 4 * 4, 24),
        )
        self.bottleneck = nn.Linear(24, base * 2 * 4 * 4)
        self.decoder = nn.Sequential(
            nn.Unflatten(1, (base * 2, 4, 4)),
            nn.ConvTranspose2d(base * 2, base, 3, stride=2, padding=1, output_padding=1),
            nn.GELU(),
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
            nn.Conv2d(base, 1, 3, padding="same"),
            nn.Sigmoid(),
        )

    def forward(self, x):
        code = self.encoder(x)
        return self.decoder(self.bottleneck(code).relu()), code


def make_rings(n, size=16):
    ys, xs = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    radius = torch.empty(n).uniform_(2, 7)
    distance = ((xs - size / 2) ** 2 + (ys - size / 2) ** 2).sqrt()
    return torch.exp(-((distance[None] - radius[:, None, None]) ** 2)).unsqueeze(1)


def add_noise(x, amount):
    return torch.clamp(x + amount * torch.randn_like(x), 0.0, 1.0)


def psnr(a, b):
    return 10 * math.log10(1 / nn.functional.mse_loss(a, b).item())


clean = make_rings(128)
train_dl = DataLoader(TensorDataset(clean[:96]), batch_size=BATCH, shuffle=True)
val_x = clean[96:]
model = ConvAutoencoder().to(device)
print(model)
criterion = nn.MSELoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
    optimizer, mode="min", factor=0.5, patience=0
)
best = float("inf")
for epoch in range(EPOCHS):
    model.train()
    total = 0.0
    for (x,) in train_dl:
        x = x.to(device)
        recon, code = model(add_noise(x, NOISE))
        loss = criterion(recon, x) + 1e-4 * code.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    model.eval()
    with torch.no_grad():
        noisy = add_noise(val_x, NOISE).to(device)
        recon, _ = model(noisy)
        val_loss = criterion(recon, val_x.to(device))
    scheduler.step(val_loss)
    lr = optimizer.param_groups[0]["lr"]
    print(
        f"{epoch=} train={total / len(train_dl):.5f} val={val_loss:.5f} lr={lr:g}"
        f" psnr {psnr(noisy, val_x):.2f} -> {psnr(recon, val_x):.2f}"
    )
    if val_loss < best:
        best = val_loss.item()
        torch.save(model.state_dict(), "best.pth")
model.load_state_dict(torch.load("best.pth", map_location=device))
os.remove("best.pth")
with torch.no_grad():
    print("best %.5f, again %.5f" % (best, criterion(model(noisy)[0], val_x).item()))
