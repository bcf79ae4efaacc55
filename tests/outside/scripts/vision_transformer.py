"""A vision transformer: patches, a class token, positions, blocks of attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR


class PatchEmbedding(nn.Module):
    def __init__(self, image_size=16, patch=4, channels=3, dim=32):
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, kernel_size=patch, stride=patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, (image_size // patch) ** 2 + 1, dim) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x).flatten(2).transpose(1, 2)
        cls = self.cls_token.expand(x.shape[0], -1, -1)
        return torch.cat((cls, x), dim=1) + self.pos_embed


class Attention(nn.Module):
    def __init__(self, dim, heads=4, qkv_bias=False, dropout=0.0):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(dropout)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = self.attn_drop(attn.softmax(dim=-1))
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        keep = 1 - self.p
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        return x * mask.div_(keep)


class Block(nn.Module):
    def __init__(self, dim, mlp_ratio=2, drop=0.1, drop_path=0.1):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, dropout=drop)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(dim, dim * mlp_ratio),
            nn.GELU(),
            nn.Dropout(drop),
            nn.Linear(dim * mlp_ratio, dim),
        )

    def forward(self, x):
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class ViT(nn.Module):
    def __init__(self, depth=2, dim=32, num_classes=4):
        super().__init__()
        self.patch_embed = PatchEmbedding(dim=dim)
        rates = [x.item() for x in torch.linspace(0, 0.2, depth)]
        self.blocks = nn.ModuleList([Block(dim, drop_path=rates[i]) for i in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)
        nn.init.trunc_normal_(self.patch_embed.cls_token, std=0.02)
        self.apply(self._init_weights)

    def _init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.trunc_normal_(m.weight, std=0.02)
            if m.bias is not None:
                nn.init.zeros_(m.bias)

    def forward(self, x):
        x = self.patch_embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def get_param_groups(model, weight_decay):
    decay, no_decay = [], []
    for name, param in model.named_parameters():
        if not param.requires_grad:
            continue
        (no_decay if param.ndim <= 1 or name.endswith("pos_embed") else decay).append(param)
    return [
        {"params": no_decay, "weight_decay": 0.0},
        {"params": decay, "weight_decay": weight_decay},
    ]


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
labels = torch.randint(0, 4, (128,))
images = F.interpolate(torch.rand(4, 3, 4, 4), size=16, mode="nearest")[labels]
images = images + 0.3 * torch.randn_like(images)
model = ViT().to(device)
optimizer = AdamW(get_param_groups(model, 0.05), lr=2e-3, betas=(0.9, 0.95))
warmup = LinearLR(optimizer, start_factor=0.1, total_iters=4)
cosine = CosineAnnealingLR(optimizer, T_max=12, eta_min=1e-5)
scheduler = SequentialLR(optimizer, schedulers=[warmup, cosine], milestones=[4])
for step in range(16):
    idx = torch.randperm(len(images))[:32]
    logits = model(images[idx].to(device))
    loss = F.cross_entropy(logits, labels[idx].to(device), label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    scheduler.step()
    if step % 5 == 0:
        print(
            f"step {step:2d} loss {loss.item():.4f} norm {norm:.3f} lr {scheduler.get_last_lr()[0]:.2e}"
        )
model.eval()
with torch.no_grad():
    print(f"accuracy {(model(images).argmax(-1) == labels).float().mean():.3f}")
