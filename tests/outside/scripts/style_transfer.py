"""An image is optimised so that features, taken by hooks, match a content and a style image."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
imsize = 24


def image_loader(kind):
    ys, xs = torch.meshgrid(
        torch.linspace(0, 1, imsize), torch.linspace(0, 1, imsize), indexing="ij"
    )
    if kind == "style":
        image = torch.stack([torch.sin(20 * xs) ** 2, torch.cos(15 * ys) ** 2, xs * ys])
    else:
        image = torch.stack([xs, ys, ((xs - 0.5) ** 2 + (ys - 0.5) ** 2 < 0.1).float()])
    return image.unsqueeze(0).to(device, torch.float)


def gram_matrix(input):
    a, b, c, d = input.size()
    features = input.view(a * b, c * d)
    G = torch.mm(features, features.t())
    return G.div(a * b * c * d)


class Normalization(nn.Module):
    def __init__(self, mean, std):
        super(Normalization, self).__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, img):
        return (img - self.mean) / self.std


class StyleLoss(nn.Module):
    def __init__(self, target_feature):
        super(StyleLoss, self).__init__()
        self.target = gram_matrix(target_feature).detach()

    def forward(self, input):
        self.loss = F.mse_loss(gram_matrix(input), self.target)
        return input


features = {}


def get_features(name):
    def hook(module, input, output):
        features[name] = output

    return hook


cnn = nn.Sequential(
    nn.Conv2d(3, 12, 3, padding=1),
    nn.ReLU(inplace=False),
    nn.MaxPool2d(2),
    nn.Conv2d(12, 16, 3, padding=1),
    nn.ReLU(inplace=False),
    nn.Conv2d(16, 16, 3, padding=1),
).eval()
for m in cnn:
    if isinstance(m, nn.Conv2d):
        nn.init.orthogonal_(m.weight)
cnn.requires_grad_(False)
model = nn.Sequential(Normalization([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), *cnn).to(device)
handles = [
    model[1].register_forward_hook(get_features("conv_1")),
    model[4].register_forward_hook(get_features("conv_2")),
    model[6].register_forward_hook(get_features("conv_3")),
]

style_img, content_img = image_loader("style"), image_loader("content")
assert style_img.size() == content_img.size(), "images of the same size are needed"
model(style_img)
style_losses = {name: StyleLoss(features[name]) for name in ("conv_1", "conv_2", "conv_3")}
model(content_img)
content_target = features["conv_3"].detach()
input_img = content_img.clone()
input_img.requires_grad_(True)
optimizer = optim.LBFGS([input_img], max_iter=4)
run = [0]
while run[0] <= 12:

    def closure():
        with torch.no_grad():
            input_img.clamp_(0, 1)
        optimizer.zero_grad()
        model(input_img)
        style_score = 0
        for name, sl in style_losses.items():
            sl(features[name])
            style_score += sl.loss
        content_score = F.mse_loss(features["conv_3"], content_target)
        style_score *= 1000
        loss = style_score + content_score
        loss.backward()
        run[0] += 1
        if run[0] % 4 == 0:
            print(
                f"run {run}: Style Loss : {style_score.item():4f} Content Loss: {content_score.item():4f}"
            )
        return style_score + content_score

    optimizer.step(closure)
for handle in handles:
    handle.remove()
with torch.no_grad():
    input_img.clamp_(0, 1)
print("mean per channel:", [round(v, 3) for v in input_img.mean(dim=(0, 2, 3)).tolist()])

refined = input_img.detach().clone().requires_grad_()
adam = optim.Adam([refined], lr=0.01)
for step in range(5):
    adam.zero_grad()
    tv = (refined[:, :, 1:] - refined[:, :, :-1]).abs().mean() + (
        refined[..., 1:] - refined[..., :-1]
    ).abs().mean()
    (tv + F.mse_loss(refined, input_img.detach())).backward()
    adam.step()
    refined.data.clamp_(0, 1)
print(f"total variation {tv.item():.5f}")
