"""Images of shapes, drawn: what the demo's network is trained on and shown.

An image is 64x64 grey pixels in [0, 1] with one filled or outlined shape of random place, size, angle and grey, on a noisy
background.
"""

from __future__ import annotations

import numpy as np

CLASSES = ("circle", "square", "triangle", "cross", "ring", "star")
SIZE = 64


def _polygon(px: np.ndarray, py: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Even-odd test of every pixel against a polygon, corners [n, 2]."""
    inside = np.zeros(px.shape, bool)
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if y0 == y1:
            continue
        crosses = (py < y0) != (py < y1)
        inside ^= crosses & (px < (x1 - x0) * (py - y0) / (y1 - y0) + x0)
    return inside


def _mask(kind: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The shape in its own unit coordinates."""
    radius = np.hypot(x, y)
    if kind == "circle":
        return radius < 1
    if kind == "ring":
        return (radius < 1) & (radius > 0.6)
    if kind == "square":
        return np.maximum(abs(x), abs(y)) < 0.8
    if kind == "cross":
        return (np.minimum(abs(x), abs(y)) < 0.25) & (np.maximum(abs(x), abs(y)) < 1)
    corners = 3 if kind == "triangle" else 10
    angle = np.arange(corners) * 2 * np.pi / corners
    reach = np.where(np.arange(corners) % 2 == 0, 1.0, 1.0 if kind == "triangle" else 0.4)
    return _polygon(x, y, np.stack([reach * np.sin(angle), -reach * np.cos(angle)], axis=1))


def draw(kind: int, rng: np.random.Generator) -> np.ndarray:
    """One image, float32 [64, 64]."""
    py, px = np.mgrid[0:SIZE, 0:SIZE].astype(np.float64)
    scale = rng.uniform(9, 24)
    cx, cy = rng.uniform(scale * 0.9, SIZE - scale * 0.9, 2)
    turn = rng.uniform(0, 2 * np.pi)
    dx, dy = (px - cx) / scale, (py - cy) / scale
    mask = _mask(CLASSES[kind], dx * np.cos(turn) + dy * np.sin(turn), dy * np.cos(turn) - dx * np.sin(turn))
    ground, grey = rng.uniform(0, 0.45), rng.uniform(0.55, 1)
    if rng.random() < 0.5:
        ground, grey = grey, ground
    image = np.where(mask, grey, ground) + rng.normal(0, 0.03, (SIZE, SIZE))
    return np.clip(image, 0, 1).astype(np.float32)


def dataset(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [count, 64, 64, 1] and labels [count]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(CLASSES), count)
    return np.stack([draw(int(k), rng) for k in labels])[..., None], labels
