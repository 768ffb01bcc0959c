"""TinyViT-5M as a frozen teacher: what it sees at 14 x 14, at 7 x 7 and after pooling.

Wu et al., TinyViT: Fast Pretraining Distillation for Small Vision Transformers, ECCV 2022, arXiv:2207.10666. Reads the
checkpoint of timm's `tiny_vit_5m_224`. Written for throughput: every batch norm is folded into its convolution, the
1 x 1 convolutions are matrix products over channels-last maps, and the depthwise ones are nine shifted sums, which
`torch.compile` fuses into one kernel.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# width, blocks, heads and window of the four stages; the first is made of convolutions
STAGES = ((64, 2, 0, 0), (128, 2, 4, 7), (160, 6, 5, 14), (320, 2, 10, 7))
HEAD_EPS = 1e-5


class Teacher(nn.Module):
    """Of normalised 224 px photos: the maps [b 14 14 160] and [b 7 7 320], and the last pooled and normed, [b 320]."""

    def __init__(self, weights: dict[str, Tensor]):
        super().__init__()
        for name, tensor in _folded(weights).items():
            self.register_buffer(name.replace(".", "_"), tensor.float())

    def weight(self, name: str) -> Tensor:
        return getattr(self, name.replace(".", "_"))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = F.gelu(self._convolve(pixels, "patch_embed.conv1"))
        x = self._convolve(x, "patch_embed.conv2").permute(0, 2, 3, 1)
        for block in range(STAGES[0][1]):
            x = self._inverted_bottleneck(x, f"stages.0.blocks.{block}")
        maps = []
        for stage, (_, blocks, heads, window) in enumerate(STAGES[1:], start=1):
            x = self._merge(x, f"stages.{stage}.downsample")
            for block in range(blocks):
                x = self._block(x, f"stages.{stage}.blocks.{block}", heads, window)
            maps.append(x)
        return maps[1], maps[2], self._norm(x.mean((1, 2)), "head.norm", HEAD_EPS)

    def _convolve(self, x: Tensor, name: str) -> Tensor:
        return F.conv2d(x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias"), stride=2, padding=1)

    def _pointwise(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weight(f"{name}.weight").flatten(1), self.weight(f"{name}.bias"))

    def _depthwise(self, x: Tensor, name: str, stride: int = 1) -> Tensor:
        kernel = self.weight(f"{name}.weight")[:, 0]
        height, width = x.shape[1], x.shape[2]
        padded = F.pad(x, (0, 0, 1, 1, 1, 1))
        total = self.weight(f"{name}.bias")
        for i in range(3):
            for j in range(3):
                total = total + kernel[:, i, j] * padded[:, i : i + height : stride, j : j + width : stride]
        return total

    def _inverted_bottleneck(self, x: Tensor, name: str) -> Tensor:
        y = F.gelu(self._pointwise(x, f"{name}.conv1"))
        y = F.gelu(self._depthwise(y, f"{name}.conv2"))
        return F.gelu(x + self._pointwise(y, f"{name}.conv3"))

    def _merge(self, x: Tensor, name: str) -> Tensor:
        y = F.gelu(self._pointwise(x, f"{name}.conv1"))
        y = F.gelu(self._depthwise(y, f"{name}.conv2", stride=2))
        return self._pointwise(y, f"{name}.conv3")

    def _block(self, x: Tensor, name: str, heads: int, window: int) -> Tensor:
        x = x + self._window_attention(x, f"{name}.attn", heads, window)
        x = self._depthwise(x, f"{name}.local_conv")
        y = self._norm(x, f"{name}.mlp.norm")
        return x + self._pointwise(F.gelu(self._pointwise(y, f"{name}.mlp.fc1")), f"{name}.mlp.fc2")

    def _window_attention(self, x: Tensor, name: str, heads: int, window: int) -> Tensor:
        batch, side, _, width = x.shape
        count, size = side // window, width // heads
        windows = x.reshape(batch, count, window, count, window, width).transpose(2, 3).reshape(-1, window**2, width)
        qkv = self._pointwise(self._norm(windows, f"{name}.norm"), f"{name}.qkv")
        q, k, v = qkv.view(-1, window**2, heads, 3, size).permute(3, 0, 2, 1, 4)
        scores = q @ k.transpose(-1, -2) * size**-0.5 + self.weight(f"{name}.attention_biases")
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, window**2, width)
        mixed = self._pointwise(mixed, f"{name}.proj")
        return mixed.view(batch, count, count, window, window, width).transpose(2, 3).reshape(x.shape)

    def _norm(self, x: Tensor, name: str, eps: float = 1e-5) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight(f"{name}.weight"), self.weight(f"{name}.bias"), eps)


def _folded(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same function without batch norms, and with each attention bias laid out for every pair of window cells."""
    folded = {}
    for name, tensor in weights.items():
        tensor = tensor.float() if tensor.is_floating_point() else tensor
        if name.endswith(".conv.weight"):
            layer = name.removesuffix(".conv.weight")
            parts = (f"{layer}.bn.{part}" for part in ("weight", "bias", "running_mean", "running_var"))
            scale, shift, mean, var = (weights[part].float() for part in parts)
            gain = scale / (var + 1e-5).sqrt()
            folded[f"{layer}.weight"] = tensor * gain[:, None, None, None]
            folded[f"{layer}.bias"] = shift - mean * gain
        elif name.endswith("attention_biases"):
            folded[name] = tensor[:, _pair_offsets(int(tensor.shape[1] ** 0.5))]
        elif ".bn." not in name and not name.startswith("head.fc"):
            folded[name] = tensor
    return folded


def _pair_offsets(window: int) -> Tensor:
    """For two cells of a window, the place of their distance (|rows|, |columns|) in the bias table."""
    row, column = torch.arange(window**2) // window, torch.arange(window**2) % window
    return (row[:, None] - row).abs() * window + (column[:, None] - column).abs()
