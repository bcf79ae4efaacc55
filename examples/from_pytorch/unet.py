"""A U-Net that finds discs in noise: python examples/from_pytorch/unet.py"""

import nnmpi as torch
import nnmpi.nn as nn
import nnmpi.nn.functional as F
from nnmpi.utils.data import DataLoader, Dataset, random_split

EPOCHS = 3

torch.manual_seed(0)
device = torch.device("cpu")


class Discs(Dataset):
    def __init__(self, n, size=24):
        x = torch.arange(size).float()
        centre = torch.randint(6, size - 6, (n, 2)).float()
        radius = 3 + 3 * torch.rand(n, 1, 1)
        rows = (x.view(1, -1, 1) - centre[:, 0].view(-1, 1, 1)) ** 2
        columns = (x.view(1, 1, -1) - centre[:, 1].view(-1, 1, 1)) ** 2
        self.masks = (rows + columns < radius**2).float().unsqueeze(1)
        self.images = self.masks + 0.5 * torch.randn(n, 1, size, size)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], self.masks[i]


def block(c_in, c_out):
    return nn.Sequential(
        *(nn.Conv2d(c_in, c_out, 3, padding=1), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True)),
        *(nn.Conv2d(c_out, c_out, 3, padding=1), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True)),
    )


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down1, self.down2 = block(1, width), block(width, 2 * width)
        self.bottom = block(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.dec2 = block(4 * width, 2 * width)
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.dec1 = block(3 * width, width)
        self.head = nn.Conv2d(width, 1, kernel_size=1)

    def forward(self, x):
        d1 = self.down1(x)
        d2 = self.down2(F.max_pool2d(d1, 2))
        y = self.bottom(F.max_pool2d(d2, 2))
        y = self.dec2(torch.cat([self.up2(y), d2], dim=1))
        y = self.dec1(torch.cat([self.up1(y), d1], dim=1))
        return self.head(y)


def dice_loss(logits, target):
    p = torch.sigmoid(logits)
    return 1 - 2 * (p * target).sum(dim=(1, 2, 3)).mean() / (p + target).sum((1, 2, 3)).mean()


train, test = random_split(Discs(160), [128, 32])
loader = DataLoader(train, batch_size=16, shuffle=True, num_workers=0)
model = UNet().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
losses = []
for epoch in range(EPOCHS):
    model.train()
    for images, masks in loader:
        images, masks = images.to(device), masks.to(device)
        logits = model(images)
        loss = F.binary_cross_entropy_with_logits(logits, masks) + dice_loss(logits, masks)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        losses.append(loss.item())
    scheduler.step()

    model.eval()
    overlap = union = 0.0
    with torch.no_grad():
        for images, masks in DataLoader(test, batch_size=16):
            pred, true = torch.sigmoid(model(images.to(device))) > 0.5, masks > 0.5
            overlap += (pred & true).sum().item()
            union += (pred | true).sum().item()
    print(f"epoch {epoch + 1}   loss {losses[-1]:.3f}   overlap over union {overlap / union:.3f}")
