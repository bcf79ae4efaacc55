"""A generative adversarial network of convolutions: python examples/from_pytorch/dcgan.py"""

import nnmpi as torch
from nnmpi import nn, optim
from nnmpi.data import load
from nnmpi.utils.data import DataLoader, TensorDataset

NOISE, WIDTH, EPOCHS = 16, 24, 3

torch.manual_seed(0)
device = torch.device("cpu")


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(NOISE, WIDTH * 2, 4, 1, 0, bias=False),  # 4 x 4
            nn.BatchNorm2d(WIDTH * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(WIDTH * 2, 1, 4, 2, 1, bias=False),  # 8 x 8
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, WIDTH, 4, 2, 1, bias=False),  # 4 x 4
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(WIDTH, WIDTH * 2, 4, 2, 1, bias=False),  # 2 x 2
            nn.BatchNorm2d(WIDTH * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(WIDTH * 2, 1, 2, 1, 0, bias=False),
        )

    def forward(self, x):
        return self.main(x).view(-1)


def init_weights(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


images = torch.tensor(load("digits", seed=0).train.x).float().view(-1, 1, 8, 8) / 8 - 1
loader = DataLoader(TensorDataset(images), batch_size=128, shuffle=True, drop_last=True)

generator = Generator().apply(init_weights).to(device)
discriminator = Discriminator().apply(init_weights).to(device)
criterion = nn.BCEWithLogitsLoss()
g_optimizer = optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
d_optimizer = optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
losses = []
for epoch in range(EPOCHS):
    for (real,) in loader:
        real = real.to(device)
        b = real.size(0)
        fake = generator(torch.randn(b, NOISE, 1, 1, device=device))

        discriminator.zero_grad()
        d_loss = criterion(discriminator(real), torch.ones(b, device=device))
        d_loss += criterion(discriminator(fake.detach()), torch.zeros(b, device=device))
        d_loss.backward()
        d_optimizer.step()

        generator.zero_grad()
        g_loss = criterion(discriminator(fake), torch.full((b,), 1.0, device=device))
        g_loss.backward()
        g_optimizer.step()
        losses += [d_loss.item(), g_loss.item()]
    print(f"epoch {epoch + 1}   discriminator {d_loss.item():.3f}   generator {g_loss.item():.3f}")
torch.save({f"G.{k}": v for k, v in generator.state_dict().items()}, "dcgan.safetensors")
