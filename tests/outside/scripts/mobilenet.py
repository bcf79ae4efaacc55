"""A MobileNet of inverted residuals: depthwise convolutions, ReLU6, a decaying rate."""

import math
from functools import partial

import torch
import torch.nn as nn
from torch.optim.lr_scheduler import LambdaLR


def _make_divisible(v, divisor, min_value=None):
    if min_value is None:
        min_value = divisor
    new_v = max(min_value, int(v + divisor / 2) // divisor * divisor)
    return new_v + divisor if new_v < 0.9 * v else new_v


class ConvBNReLU(nn.Sequential):
    def __init__(self, in_planes, out_planes, kernel_size=3, stride=1, groups=1, norm_layer=None):
        padding = (kernel_size - 1) // 2
        if norm_layer is None:
            norm_layer = nn.BatchNorm2d
        super(ConvBNReLU, self).__init__(
            nn.Conv2d(
                in_planes, out_planes, kernel_size, stride, padding, groups=groups, bias=False
            ),
            norm_layer(out_planes),
            nn.ReLU6(inplace=True),
        )


class InvertedResidual(nn.Module):
    def __init__(self, inp, oup, stride, expand_ratio, norm_layer=None):
        super(InvertedResidual, self).__init__()
        assert stride in [1, 2]
        hidden_dim = int(round(inp * expand_ratio))
        self.use_res_connect = stride == 1 and inp == oup
        layers = []
        if expand_ratio != 1:
            layers.append(ConvBNReLU(inp, hidden_dim, kernel_size=1, norm_layer=norm_layer))
        layers.extend(
            [
                ConvBNReLU(
                    hidden_dim, hidden_dim, stride=stride, groups=hidden_dim, norm_layer=norm_layer
                ),
                nn.Conv2d(hidden_dim, oup, 1, 1, 0, bias=False),
                norm_layer(oup),
            ]
        )
        self.conv = nn.Sequential(*layers)

    def forward(self, x):
        if self.use_res_connect:
            return x + self.conv(x)
        return self.conv(x)


class MobileNet(nn.Module):
    def __init__(self, num_classes=4, width_mult=0.5, dropout=0.2):
        super(MobileNet, self).__init__()
        norm_layer = partial(nn.BatchNorm2d, eps=0.001, momentum=0.01)
        input_channel = _make_divisible(16 * width_mult, 8)
        features = [ConvBNReLU(3, input_channel, stride=2, norm_layer=norm_layer)]
        for t, c, n, s in [[1, 16, 1, 1], [3, 24, 2, 2], [3, 32, 1, 1]]:
            output_channel = _make_divisible(c * width_mult, 8)
            for i in range(n):
                features.append(
                    InvertedResidual(
                        input_channel, output_channel, s if i == 0 else 1, t, norm_layer=norm_layer
                    )
                )
                input_channel = output_channel
        features.append(ConvBNReLU(input_channel, 32, kernel_size=1, norm_layer=norm_layer))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(p=dropout), nn.Linear(32, num_classes))
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                fan_out = m.kernel_size[0] * m.kernel_size[1] * m.out_channels // m.groups
                m.weight.data.normal_(0, math.sqrt(2.0 / fan_out))
                if m.bias is not None:
                    m.bias.data.zero_()
            elif isinstance(m, nn.BatchNorm2d):
                m.weight.data.fill_(1)
                m.bias.data.zero_()
            elif isinstance(m, nn.Linear):
                m.weight.data.normal_(0, 0.01)
                m.bias.data.zero_()

    def forward(self, x):
        x = self.features(x)
        x = nn.functional.adaptive_avg_pool2d(x, (1, 1))
        x = torch.flatten(x, 1)
        return self.classifier(x)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    y = torch.randint(0, 4, (96,))
    x = torch.rand(4, 3, 16, 16)[y] + 0.3 * torch.randn(96, 3, 16, 16)
    model = MobileNet().to(device)
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    depthwise = [m for m in convs if m.groups == m.in_channels and m.groups > 1]
    print(f"{len(convs)} convolutions, {len(depthwise)} of them depthwise")
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.002, alpha=0.9, eps=0.01, momentum=0.9)
    scheduler = LambdaLR(optimizer, lr_lambda=lambda epoch: 0.98**epoch)
    for step in range(15):
        idx = torch.randint(0, len(x), (24,))
        images, target = x[idx].to(device), y[idx].to(device)
        output = model(images)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 5 == 0:
            acc = output.argmax(1).eq(target).float().mean().item() * 100
            print(f"step {step}: loss {loss.item():.4f} acc {acc:.1f} lr {scheduler.get_last_lr()}")
    model.eval()
    with torch.no_grad():
        probs = torch.nn.functional.softmax(model(x[:2]), dim=1)
    top_p, top_class = probs.topk(2, dim=1)
    print("top probabilities:", [[f"{p:.3f}" for p in row] for row in top_p.tolist()])


if __name__ == "__main__":
    main()
