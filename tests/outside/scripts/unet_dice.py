"""A U-Net that segments discs, with the sum of the Dice and the cross-entropy loss."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, Dataset


class Discs(Dataset):
    def __init__(self, n, size=24, seed=0):
        rng = np.random.RandomState(seed)
        grid = np.arange(size)
        self.images, self.masks = [], []
        for _ in range(n):
            cy, cx, r = rng.randint(6, size - 6), rng.randint(6, size - 6), rng.randint(3, 6)
            mask = (grid[:, None] - cy) ** 2 + (grid[None] - cx) ** 2 < r**2
            self.images.append((mask + 0.4 * rng.randn(size, size)).astype(np.float32)[None])
            self.masks.append(mask.astype(np.int64))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {
            "image": torch.as_tensor(self.images[i].copy()).float().contiguous(),
            "mask": torch.as_tensor(self.masks[i].copy()).long().contiguous(),
        }


class DoubleConv(nn.Module):
    def __init__(self, in_channels, out_channels, mid_channels=None):
        super().__init__()
        if not mid_channels:
            mid_channels = out_channels
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, mid_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(mid_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(mid_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.double_conv(x)


class Up(nn.Module):
    def __init__(self, in_channels, out_channels, bilinear=True):
        super().__init__()
        if bilinear:
            self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.conv = DoubleConv(in_channels, out_channels, in_channels // 2)
        else:
            self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, kernel_size=2, stride=2)
            self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        diffY = x2.size()[2] - x1.size()[2]
        diffX = x2.size()[3] - x1.size()[3]
        x1 = F.pad(x1, [diffX // 2, diffX - diffX // 2, diffY // 2, diffY - diffY // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes, width=6):
        super().__init__()
        self.n_channels, self.n_classes = n_channels, n_classes
        self.inc = DoubleConv(n_channels, width)
        self.down1 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(width, width * 2))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(width * 2, width * 2))
        self.up1 = Up(width * 4, width)
        self.up2 = Up(width * 2, width)
        self.outc = nn.Conv2d(width, n_classes, kernel_size=1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        return self.outc(self.up2(self.up1(x3, x2), x1))


def dice_coeff(input, target, epsilon=1e-6):
    assert input.size() == target.size()
    inter = 2 * (input * target).sum(dim=(-1, -2))
    sets_sum = input.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2))
    sets_sum = torch.where(sets_sum == 0, inter, sets_sum)
    return ((inter + epsilon) / (sets_sum + epsilon)).mean()


@torch.inference_mode()
def evaluate(net, dataloader, device):
    net.eval()
    score = 0
    for batch in dataloader:
        image = batch["image"].to(device=device, dtype=torch.float32)
        mask_true = F.one_hot(batch["mask"].to(device), net.n_classes).permute(0, 3, 1, 2).float()
        mask_pred = F.one_hot(net(image).argmax(dim=1), net.n_classes).permute(0, 3, 1, 2).float()
        score += dice_coeff(mask_pred[:, 1:], mask_true[:, 1:])
    net.train()
    return score / max(len(dataloader), 1)


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = UNet(n_channels=1, n_classes=2).to(memory_format=torch.channels_last)
model.to(device=device)
train_loader = DataLoader(Discs(32), batch_size=4, shuffle=True, pin_memory=False)
val_loader = DataLoader(Discs(8, seed=1), batch_size=4, drop_last=True)
optimizer = optim.RMSprop(
    model.parameters(), lr=2e-4, weight_decay=1e-8, momentum=0.9, foreach=True
)
criterion = nn.CrossEntropyLoss()
for epoch in range(1, 3):
    model.train()
    epoch_loss = 0
    for batch in train_loader:
        images, true_masks = batch["image"], batch["mask"]
        images = images.to(device, dtype=torch.float32, memory_format=torch.channels_last)
        true_masks = true_masks.to(device=device, dtype=torch.long)
        masks_pred = model(images)
        onehot = F.one_hot(true_masks, model.n_classes).permute(0, 3, 1, 2).float()
        loss = criterion(masks_pred, true_masks)
        loss += 1 - dice_coeff(F.softmax(masks_pred, dim=1).float(), onehot)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        epoch_loss += loss.item()
    val_score = evaluate(model, val_loader, device)
    print(f"epoch {epoch}: loss {epoch_loss / len(train_loader):.5f}, Dice score {val_score:.4f}")
