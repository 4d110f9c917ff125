"""Frames of sliding windows: the networks of TinyDejaVu (arXiv 2512.09786), whole windows beside frames of new rows.

python benchmarks/sliding_windows.py [NAME ...]

The sizes of windows, layers and hops are those of the authors' public repository; weights are random. Torch writes the files.
Arenas and estimated instructions on a Cortex-M7, float32. Writes results/sliding_windows.md.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tvm_cascade import api
from tvm_cascade.errors import CascadeError

RESULTS = Path(__file__).parent / "results" / "sliding_windows.md"


class Heads(nn.Module):
    """A network for each channel, their results in a row."""

    def __init__(self, *heads: nn.Module) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    def forward(self, x: Any) -> Any:
        return torch.cat([head(x[:, k : k + 1]) for k, head in enumerate(self.heads)], 1)


class Residual(nn.Module):
    def __init__(self, main: nn.Module, beside: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.main, self.beside, self.last = main, beside, last

    def forward(self, x: Any) -> Any:
        return self.last(self.main(x) + self.beside(x))


class Mean(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.mean(2)


class Rows(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.transpose(1, 2)


class Token(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.reshape(1, 1, -1)


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.last = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        product = nn.functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        return self.last(product)


def _transformer(width: int, hidden: int, layers: int, classes: int) -> list[nn.Module]:
    made = list[nn.Module]()
    for _ in range(layers):
        dense = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
        made += [Residual(part, nn.Identity(), nn.LayerNorm(width)) for part in (Attention(width), dense)]
    return [*made, nn.LayerNorm(width), nn.Linear(width, classes)]


def _fused_signals() -> nn.Module:
    def head() -> nn.Module:
        first = (nn.Conv1d(1, 10, 20), nn.MaxPool1d(2))
        return nn.Sequential(*first, nn.Conv1d(10, 20, 15), nn.Conv1d(20, 25, 10), nn.Conv1d(25, 30, 10))

    dense = (nn.Linear(3 * 30 * 9, 100), nn.Linear(100, 40), nn.Linear(40, 2))
    return nn.Sequential(Heads(head(), head(), head()), nn.Flatten(), *dense)


def _outcome() -> nn.Module:
    def conv(made: int, **extra: Any) -> nn.Module:
        return nn.Sequential(nn.Conv1d(18, made, 5, padding=2, bias=False), nn.BatchNorm1d(made), *extra.values())

    main = nn.Sequential(conv(18, last=nn.LeakyReLU()), conv(1))
    block = Residual(main, nn.Conv1d(18, 1, 1, bias=False), nn.LeakyReLU())
    dense = (nn.AvgPool1d(2), nn.Flatten(), nn.Linear(160, 64), Token())
    return nn.Sequential(block, *dense, *_transformer(64, 64, 4, 64), nn.Linear(64, 2))


def _music() -> nn.Module:
    def block(read: int, dilation: int) -> nn.Module:
        pad = 2 * dilation
        convs = (nn.Conv1d(c, 75, 5, padding=pad, dilation=dilation) for c in (read, 75))
        main = nn.Sequential(*(layer for conv in convs for layer in (conv, nn.ReLU())))
        return Residual(main, nn.Conv1d(read, 75, 1) if read != 75 else nn.Identity(), nn.ReLU())

    blocks = [block(88 if dilation == 1 else 75, dilation) for dilation in (1, 2, 4, 8)]
    return nn.Sequential(*blocks, Rows(), nn.Linear(75, 88), nn.Sigmoid())


def _muscles() -> nn.Module:
    layers = list[nn.Module]()
    for read, made, dilation, stride in ((14, 32, 2, 1), (32, 64, 4, 2), (64, 128, 8, 4)):
        half, same = made // 2, {"dilation": dilation, "padding": dilation}
        layers += [nn.Conv1d(read, half, 3, **same), nn.Conv1d(half, half, 3, **same)]
        layers += [nn.Conv1d(half, made, 5, stride, 2), nn.AvgPool1d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(640, 128), nn.Linear(128, 8))


def _birds() -> nn.Module:
    convs = (nn.Conv1d(1, 4, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(4, 8, 3))
    return nn.Sequential(*convs, Mean(), nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))


def _birds_by_attention() -> nn.Module:
    convs = (nn.Conv1d(1, 16, 3), nn.ReLU(), nn.MaxPool1d(2))
    return nn.Sequential(*convs, Mean(), Token(), *_transformer(16, 32, 1, 2))


# by name: the network, channels, rows of a window, and hops: the repository's, then smaller ones
NETWORKS: dict[str, tuple[Any, int, int, tuple[int, ...]]] = {
    "cECG_CNN": (_fused_signals, 3, 101, (51, 10)),
    "CET_S": (_outcome, 18, 320, (51, 32)),
    "ResTCN": (_music, 88, 192, (15, 1)),
    "TEMPONet": (_muscles, 14, 300, (30, 16)),
    "TinyChirpCNNTime": (_birds, 1, 48000, (16000, 1600)),
    "TinyChirpTransformerTime": (_birds_by_attention, 1, 48000, (16000, 1600)),
}


def rows(name: str, folder: Path) -> list[str]:
    """Return the table's lines of a network."""
    make, channels, length, hops = NETWORKS[name]
    torch.manual_seed(7)
    path = folder / f"{name}.onnx"
    torch.onnx.export(make().eval(), (torch.rand(1, channels, length),), str(path), opset_version=17, dynamo=False)
    whole: Any = api.plan(path, target="cortex-m7").to_dict()
    taken = whole["estimated"]["estimated_instructions"]
    lines = list[str]()
    for hop in hops:
        head = f"| {name} | {channels} x {length:,} | {hop:,} | {whole['peak_bytes']:,} | {taken:,}"
        try:
            made: Any = api.plan(path, target="cortex-m7", hop=hop, axis=2).to_dict()
        except CascadeError:
            lines.append(f"{head} | refused | | |")
            continue
        frame, least = made["frame"], made["estimated"]["estimated_instructions"]
        lines.append(f"{head} | {made['peak_bytes']:,} | {frame['state_bytes']:,} | {least:,} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines = [line for name in sys.argv[1:] or NETWORKS for line in rows(name, Path(folder))]
    RESULTS.write_text(
        """# Frames of sliding windows

`python benchmarks/sliding_windows.py`. The six networks of TinyDejaVu (arXiv 2512.09786) in float32, rebuilt by the sizes in
the authors' public repository, with its hops and smaller ones; bytes of the arena and estimated instructions on a Cortex-M7,
of the whole window and of a frame of new rows. The paper's tables were not at hand: no figure of TinyDejaVu or StreamiNNC
stands here. Refused is a hop that leaves no row to keep, for the strides and padding in front of it.

| network | window | hop | window: bytes | instructions | frame: bytes | of it kept | instructions |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""
        + "\n".join(lines)
        + "\n"
    )


if __name__ == "__main__":
    main()
