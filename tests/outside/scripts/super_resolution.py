"""Super-resolution: a sub-pixel convolutional network."""

from math import log10

import torch
import torch.nn as nn
import torch.nn.init as init
import torch.optim as optim
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as BaseDataset


class Net(nn.Module):
    def __init__(self, upscale_factor):
        super(Net, self).__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 16, (5, 5), (1, 1), (2, 2))
        self.conv2 = nn.Conv2d(16, 16, (3, 3), (1, 1), (1, 1))
        self.conv3 = nn.Conv2d(16, 8, (3, 3), (1, 1), (1, 1))
        self.conv4 = nn.Conv2d(8, upscale_factor**2, (3, 3), (1, 1), (1, 1))
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        self._initialize_weights()

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        x = self.relu(self.conv3(x))
        x = self.pixel_shuffle(self.conv4(x))
        return x

    def _initialize_weights(self):
        init.orthogonal_(self.conv1.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv2.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv3.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv4.weight)


class Waves(BaseDataset):
    def __init__(self, n, factor, size=24):
        super(Waves, self).__init__()
        ys, xs = torch.meshgrid(
            torch.linspace(0, 6, size), torch.linspace(0, 6, size), indexing="ij"
        )
        a, b, phase = torch.rand(3, n, 1, 1)
        self.target = (0.5 + 0.5 * torch.sin(a * 2 * xs + b * 2 * ys + 6 * phase)).unsqueeze(1)
        self.input = nn.functional.interpolate(
            self.target, scale_factor=1 / factor, mode="bilinear", align_corners=False
        )

    def __getitem__(self, index):
        return self.input[index], self.target[index]

    def __len__(self):
        return self.input.shape[0]


upscale_factor = 2
torch.manual_seed(123)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print("===> Loading datasets")
train_set, test_set = Waves(64, upscale_factor), Waves(16, upscale_factor)
training_data_loader = DataLoader(dataset=train_set, num_workers=0, batch_size=8, shuffle=True)
testing_data_loader = DataLoader(dataset=test_set, num_workers=0, batch_size=4, shuffle=False)
print("===> Building model")
model = Net(upscale_factor=upscale_factor).to(device)
criterion = nn.MSELoss()
optimizer = optim.Adam(model.parameters(), lr=0.003)


def train(epoch):
    epoch_loss = 0
    for iteration, batch in enumerate(training_data_loader, 1):
        input, target = batch[0].to(device), batch[1].to(device)
        optimizer.zero_grad()
        loss = criterion(model(input), target)
        epoch_loss += loss.item()
        loss.backward()
        optimizer.step()
        if iteration % 4 == 0:
            print(
                "===> Epoch[{}]({}/{}): Loss: {:.4f}".format(
                    epoch, iteration, len(training_data_loader), loss.item()
                )
            )
    print(
        "===> Epoch {} Complete: Avg. Loss: {:.4f}".format(
            epoch, epoch_loss / len(training_data_loader)
        )
    )


def test():
    avg_psnr = 0
    with torch.no_grad():
        for batch in testing_data_loader:
            input, target = batch[0].to(device), batch[1].to(device)
            mse = criterion(model(input), target)
            avg_psnr += 10 * log10(1 / mse.item())
    bicubic = nn.functional.interpolate(test_set.input, scale_factor=2, mode="nearest")
    print(
        "===> Avg. PSNR: {:.4f} dB, nearest {:.4f} dB".format(
            avg_psnr / len(testing_data_loader), 10 * log10(1 / criterion(bicubic, test_set.target))
        )
    )


def checkpoint(epoch):
    model_out_path = "model_epoch_{}.pth".format(epoch)
    torch.save(model.state_dict(), model_out_path)
    print("Checkpoint saved to {}".format(model_out_path))


for epoch in range(1, 4):
    train(epoch)
    test()
checkpoint(epoch)
