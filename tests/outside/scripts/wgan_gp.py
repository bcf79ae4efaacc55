"""A Wasserstein GAN with a gradient penalty on points of the plane."""

import argparse

import torch
import torch.autograd as autograd
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--n_iters", type=int, default=12)
parser.add_argument("--batch_size", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.001)
parser.add_argument("--b1", type=float, default=0.5)
parser.add_argument("--b2", type=float, default=0.9)
parser.add_argument("--latent_dim", type=int, default=4)
parser.add_argument("--n_critic", type=int, default=3)
parser.add_argument("--lambda_gp", type=float, default=10)
opt = parser.parse_args()
print(vars(opt))

cuda = torch.cuda.is_available()
device = torch.device("cuda" if cuda else "cpu")
torch.manual_seed(0)


class Generator(nn.Module):
    def __init__(self):
        super(Generator, self).__init__()

        def block(in_feat, out_feat, normalize=True):
            layers = [nn.Linear(in_feat, out_feat)]
            if normalize:
                layers.append(nn.BatchNorm1d(out_feat, 0.8))
            layers.append(nn.LeakyReLU(0.2, inplace=True))
            return layers

        self.model = nn.Sequential(
            *block(opt.latent_dim, 16, normalize=False), *block(16, 32), nn.Linear(32, 2)
        )

    def forward(self, z):
        return self.model(z)


class Discriminator(nn.Module):
    def __init__(self):
        super(Discriminator, self).__init__()
        self.model = nn.Sequential(
            nn.Linear(2, 32),
            nn.LeakyReLU(0.2),
            nn.Linear(32, 32),
            nn.LeakyReLU(0.2),
            nn.Linear(32, 1),
        )

    def forward(self, points):
        return self.model(points)


def compute_gradient_penalty(D, real_samples, fake_samples):
    alpha = torch.rand(real_samples.size(0), 1, device=device)
    interpolates = (alpha * real_samples + ((1 - alpha) * fake_samples)).requires_grad_(True)
    d_interpolates = D(interpolates)
    fake = torch.ones(real_samples.shape[0], 1, device=device, requires_grad=False)
    gradients = autograd.grad(
        outputs=d_interpolates,
        inputs=interpolates,
        grad_outputs=fake,
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    gradients = gradients.view(gradients.size(0), -1)
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


def sample_ring(n):
    angle = torch.randint(0, 8, (n,)).float() * (torch.pi / 4)
    centres = torch.stack((torch.cos(angle), torch.sin(angle)), dim=1)
    return centres + 0.05 * torch.randn(n, 2)


generator, discriminator = Generator().to(device), Discriminator().to(device)
optimizer_G = torch.optim.Adam(generator.parameters(), lr=opt.lr, betas=(opt.b1, opt.b2))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=opt.lr, betas=(opt.b1, opt.b2))
for i in range(opt.n_iters):
    real = sample_ring(opt.batch_size).to(device)
    optimizer_D.zero_grad()
    z = torch.randn(opt.batch_size, opt.latent_dim, device=device)
    fake = generator(z)
    real_validity = discriminator(real)
    fake_validity = discriminator(fake.detach())
    gradient_penalty = compute_gradient_penalty(discriminator, real.data, fake.data)
    d_loss = (
        -torch.mean(real_validity) + torch.mean(fake_validity) + opt.lambda_gp * gradient_penalty
    )
    d_loss.backward()
    optimizer_D.step()
    if i % opt.n_critic == 0:
        optimizer_G.zero_grad()
        g_loss = -torch.mean(discriminator(generator(z)))
        g_loss.backward()
        optimizer_G.step()
        print(
            "[Batch %d/%d] [D loss: %f] [G loss: %f]"
            % (i, opt.n_iters, d_loss.item(), g_loss.item())
        )
