"""Networks along time, once for every framework: a list of layers each, as `time_files.py` writes them.

Values are numbered from the inputs on. A signal is `[steps, channels]`, a vector `[channels]`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: its kind, the values that it reads, and numbers such as channels, window, stride, dilation."""

    kind: str
    reads: tuple[int, ...]
    numbers: tuple[int, ...] = ()


@dataclass
class Net:
    """Inputs as `(steps, channels)`, the layers behind them, and the channels of every value."""

    inputs: tuple[tuple[int, int], ...]
    layers: list[Layer] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # 0: a vector

    def __post_init__(self) -> None:
        self.widths, self.steps = [c for _, c in self.inputs], [t for t, _ in self.inputs]

    def add(
        self, kind: str, *reads: int, numbers: tuple[int, ...] = (), width: int = 0, steps: int | None = None
    ) -> int:
        """Append a layer and return its value; channels and steps are those of the first value read by default."""
        self.layers.append(Layer(kind, reads, numbers))
        self.widths.append(width or self.widths[reads[0]])
        self.steps.append(self.steps[reads[0]] if steps is None else steps)
        return len(self.widths) - 1

    def relu(self, x: int) -> int:
        return self.add("relu", x)

    def conv(self, x: int, channels: int, window: int, stride: int = 1, dilation: int = 1) -> int:
        """Append a convolution that is padded at both ends, so that `stride` divides the steps."""
        numbers = (channels, window, stride, dilation)
        return self.add("conv", x, numbers=numbers, width=channels, steps=-(-self.steps[x] // stride))

    def active(self, x: int, channels: int, window: int, stride: int = 1, dilation: int = 1) -> int:
        return self.relu(self.conv(x, channels, window, stride, dilation))

    def separable(self, x: int, channels: int, window: int, stride: int = 1) -> int:
        y = self.add("depthwise", x, numbers=(window, stride), steps=-(-self.steps[x] // stride))
        return self.active(y, channels, 1)

    def causal(self, x: int, channels: int, window: int, dilation: int) -> int:
        return self.relu(self.add("causal", x, numbers=(channels, window, dilation), width=channels))

    def pool(self, x: int, window: int) -> int:
        return self.add("pool", x, numbers=(window,), steps=self.steps[x] // window)

    def mean(self, x: int) -> int:
        return self.add("mean", x, steps=0)

    def flatten(self, x: int) -> int:
        return self.add("flatten", x, width=self.widths[x] * self.steps[x], steps=0)

    def dense(self, x: int, channels: int) -> int:
        return self.add("dense", x, numbers=(channels,), width=channels)

    def concat(self, *values: int) -> int:
        return self.add("concat", *values, width=sum(self.widths[v] for v in values))

    def gate(self, x: int, dilation: int) -> int:
        """Append tanh times sigmoid of two convolutions, a convolution of one step, and the sum with `x`."""
        a, b = (self.conv(x, self.widths[x], 3, 1, dilation) for _ in range(2))
        gated = self.add("mul", self.add("tanh", a), self.add("sigmoid", b))
        return self.add("add", x, self.conv(gated, self.widths[x], 1))


def activity() -> Net:
    net = Net(((128, 9),))
    x = 0
    for channels in (16, 32):
        x = net.pool(net.active(net.active(x, channels, 5), channels, 3), 2)
    net.dense(net.flatten(x), 6)
    return net


def heartbeat() -> Net:
    net = Net(((512, 1),))
    x = 0
    for channels in (16, 32, 32):
        x = net.active(x, channels, 7, 2)
    net.dense(net.mean(x), 5)
    return net


def dilated() -> Net:
    net = Net(((200, 8),))
    x = 0
    for dilation in (1, 2, 4, 8):
        x = net.active(x, 24, 3, 1, dilation)
    net.dense(net.mean(x), 4)
    return net


def keyword() -> Net:
    net = Net(((98, 40),))
    x = net.active(0, 64, 3)
    for _ in range(3):
        x = net.separable(x, 64, 9)
    net.dense(net.mean(x), 12)
    return net


def gesture() -> Net:
    net = Net(((150, 3),))
    x = 0
    for channels in (8, 16, 16):
        x = net.pool(net.active(x, channels, 3), 2)
    net.dense(net.flatten(x), 4)
    return net


def gated() -> Net:
    net = Net(((96, 4),))
    x = net.conv(0, 16, 1)
    for dilation in (1, 2, 4):
        x = net.gate(x, dilation)
    net.active(x, 8, 1)
    return net


def causal() -> Net:
    net = Net(((160, 16),))
    x = 0
    for dilation in (1, 2, 4):
        x = net.causal(x, 32, 3, dilation)
    net.dense(net.mean(x), 3)
    return net


def separable() -> Net:
    net = Net(((128, 6),))
    x = 0
    for channels, stride in ((24, 1), (48, 2), (48, 1), (64, 2)):
        x = net.separable(x, channels, 5, stride)
    net.dense(net.mean(x), 8)
    return net


def multiscale() -> Net:
    """Build windows of three lengths and a pool beside one another, twice, as in InceptionTime."""
    net = Net(((96, 6),))
    x = 0
    for _ in range(2):
        parts = [net.active(x, 8, window) for window in (3, 9, 19)]
        x = net.concat(*parts, net.active(net.add("pool_same", x, numbers=(3,)), 8, 1))
    net.dense(net.mean(x), 5)
    return net


def excited() -> Net:
    """Build convolutions with squeeze and excite over time."""
    net = Net(((128, 6),))
    x = 0
    for channels in (24, 32):
        y = net.active(x, channels, 5)
        gate = net.add("sigmoid", net.dense(net.relu(net.dense(net.mean(y), 8)), channels))
        x = net.pool(net.add("scale", y, gate), 2)
    net.dense(net.mean(x), 6)
    return net


def skips() -> Net:
    """Build gated convolutions whose results are summed and read once, as in WaveNet."""
    net = Net(((112, 4),))
    x, total = net.conv(0, 16, 3), -1
    for dilation in (1, 2, 4, 8):
        a, b = (net.conv(x, 16, 3, 1, dilation) for _ in range(2))
        g = net.add("mul", net.add("tanh", a), net.add("sigmoid", b))
        skip, x = net.conv(g, 12, 1), net.add("add", x, net.conv(g, 16, 1))
        total = skip if total < 0 else net.add("add", total, skip)
    net.conv(net.active(net.relu(total), 12, 1), 5, 1)
    return net


def unet() -> Net:
    """Build a U-Net of two steps down and up, which reads the maps of the way down."""
    net = Net(((128, 4),))
    first = net.active(0, 12, 5)
    second = net.active(net.pool(first, 2), 20, 5)
    x = net.active(net.pool(second, 2), 28, 3)
    for skip, channels in ((second, 20), (first, 12)):
        up = net.relu(net.add("up", x, numbers=(channels,), width=channels, steps=2 * net.steps[x]))
        x = net.active(net.concat(up, skip), channels, 5)
    net.add("sigmoid", net.conv(x, 3, 1))
    return net


def attentive() -> Net:
    """Build a sum of steps that a softmax over time weighs."""
    net = Net(((128, 8),))
    x = net.active(net.active(0, 24, 5), 24, 5, 2)
    scores = net.conv(net.add("tanh", net.conv(x, 12, 1)), 1, 1)
    net.dense(net.add("weigh", x, net.add("softmax", scores), steps=0), 5)
    return net


def glu() -> Net:
    """Build gated linear units: half of the channels times the sigmoid of the others."""
    net = Net(((100, 8),))
    x = 0
    for channels, dilation in ((16, 1), (20, 2), (24, 4)):
        both = net.conv(x, 2 * channels, 5, 1, dilation)
        a, b = (net.add("half", both, numbers=(k,), width=channels) for k in range(2))
        x = net.add("mul", a, net.add("sigmoid", b))
    net.dense(net.mean(x), 7)
    return net


def sensors() -> Net:
    """Build layers of their own for two sensors, and dense layers on both."""
    net = Net(((96, 6), (96, 3)))
    parts = [net.pool(net.active(x, channels, 5), 2) for x, channels in ((0, 16), (1, 8))]
    x = net.pool(net.active(net.concat(*parts), 24, 5), 2)
    net.dense(net.mean(x), 4)
    return net


def quartz() -> Net:
    """Build separable layers with batch normalization and a residual around two, as in QuartzNet."""
    net = Net(((96, 16),))
    x = net.relu(net.add("norm", net.conv(0, 32, 5, 2)))
    for _ in range(2):
        y = x
        for last in (False, True):
            y = net.add("norm", net.conv(net.add("depthwise", y, numbers=(11, 1)), 32, 1))
            y = y if last else net.relu(y)
        x = net.relu(net.add("add", y, net.add("norm", net.conv(x, 32, 1))))
    net.dense(net.mean(x), 10)
    return net


def residual() -> Net:
    """Build a ResNet along time."""
    net = Net(((256, 2),))
    x = net.pool(net.active(0, 12, 7, 2), 2)
    for channels, stride in ((12, 1), (24, 2), (32, 2)):
        y = net.conv(net.active(x, channels, 3, stride), channels, 3)
        x = net.relu(net.add("add", y, x if stride == 1 else net.conv(x, channels, 1, stride)))
    net.dense(net.mean(x), 5)
    return net


def recurrent() -> Net:
    """Build an LSTM behind convolutions, whose last step is read."""
    net = Net(((96, 6),))
    x = net.pool(net.active(net.active(0, 16, 5), 16, 5), 4)
    net.dense(net.add("lstm", x, numbers=(16,), width=16, steps=0), 4)
    return net


def statistics() -> Net:
    """Build convolutions with mean and maximum over time, as speakers are told apart."""
    net = Net(((128, 12),))
    x = net.active(net.active(net.active(0, 24, 5), 24, 3, 1, 2), 32, 1)
    net.dense(net.relu(net.dense(net.concat(net.mean(x), net.add("max", x, steps=0)), 16)), 4)
    return net


def transformer() -> Net:
    """Build a block of attention of a single head over patches of a signal, normalized behind."""
    net = Net(((128, 4),))
    x = net.conv(0, 16, 4, 4)
    q, k, v = (net.conv(x, 16, 1) for _ in range(3))
    x = net.add("layer_norm", net.add("add", x, net.conv(net.add("attend", q, k, v), 16, 1)))
    x = net.add("layer_norm", net.add("add", x, net.conv(net.active(x, 32, 1), 16, 1)))
    net.dense(net.mean(x), 5)
    return net


NETWORKS: dict[str, Callable[[], Net]] = {
    f.__name__: f
    for f in (
        activity, heartbeat, dilated, keyword, gesture, gated, causal, separable, multiscale, excited, skips, unet,
        attentive, glu, sensors, quartz, residual, recurrent, statistics, transformer,
    )
}  # fmt: skip
