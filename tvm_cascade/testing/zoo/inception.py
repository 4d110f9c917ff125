"""Inception V3 (Szegedy et al., 2016) without its classifier, as IOS schedules it: 11 blocks, 119 Conv-Relu units.

Batch normalization is folded into the convolutions' biases, as every deployment does.
"""

from __future__ import annotations

from tvm.ir import IRModule

from tvm_cascade.testing.builder import Net, Value

TABLE_2 = (11, 119)  # blocks with several branches, operators (IOS, Table 2)


def inception_v3(batch: int = 1, size: int = 299, width: float = 1.0, seed: int = 0) -> IRModule:
    """Float32, NCHW. `width` scales all channels (multiples of 8), for tests; `size` is at least 75."""
    return _Inception(width, seed).build(batch, size)


def inception_e(batch: int = 1, size: int = 8, width: float = 1.0, seed: int = 0) -> IRModule:
    """The last block alone: 11 operators, width 6 (IOS, Table 1 and Figure 10)."""
    network = _Inception(width, seed)
    x = network.net.input((batch, network.scaled(1280), size, size), "input")
    return network.net.finish(network.block_e(x))


class _Inception:
    def __init__(self, width: float, seed: int) -> None:
        self.net = Net("float32", "NCHW", seed)
        self.width = width

    def scaled(self, channels: int) -> int:
        return max(8, round(channels * self.width / 8) * 8)

    def conv(
        self,
        x: Value,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> Value:
        """`padding` is one number, or rows and columns."""
        rows, columns = (padding, padding) if isinstance(padding, int) else padding
        return self.net.conv(
            x, self.scaled(channels), kernel, stride, (rows, columns, rows, columns), activation="relu"
        )

    def chain(self, x: Value, *layers: tuple) -> Value:
        for layer in layers:
            x = self.conv(x, *layer)
        return x

    def build(self, batch: int, size: int) -> IRModule:
        net = self.net
        x = net.input((batch, 3, size, size), "input")
        x = self.chain(x, (32, 3, 2), (32, 3), (64, 3, 1, 1))
        x = net.max_pool(x, 3, 2)
        x = net.max_pool(self.chain(x, (80, 1), (192, 3)), 3, 2)
        for pooled in (32, 64, 64):
            x = self.block_a(x, pooled)
        x = self.block_b(x)
        for narrow in (128, 160, 160, 192):
            x = self.block_c(x, narrow)
        x = self.block_d(x)
        x = self.block_e(self.block_e(x))
        return net.finish(net.global_pool(x))

    def block_a(self, x: Value, pooled: int) -> Value:
        return self.net.concat(
            [
                self.conv(x, 64, 1),
                self.chain(x, (48, 1), (64, 5, 1, 2)),
                self.chain(x, (64, 1), (96, 3, 1, 1), (96, 3, 1, 1)),
                self.conv(self.net.avg_pool(x, 3, 1, 1), pooled, 1),
            ]
        )

    def block_b(self, x: Value) -> Value:
        return self.net.concat(
            [
                self.conv(x, 384, 3, 2),
                self.chain(x, (64, 1), (96, 3, 1, 1), (96, 3, 2)),
                self.net.max_pool(x, 3, 2),
            ]
        )

    def block_c(self, x: Value, c: int) -> Value:
        row, column = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))
        return self.net.concat(
            [
                self.conv(x, 192, 1),
                self.chain(x, (c, 1), (c, *row), (192, *column)),
                self.chain(x, (c, 1), (c, *column), (c, *row), (c, *column), (192, *row)),
                self.conv(self.net.avg_pool(x, 3, 1, 1), 192, 1),
            ]
        )

    def block_d(self, x: Value) -> Value:
        return self.net.concat(
            [
                self.chain(x, (192, 1), (320, 3, 2)),
                self.chain(x, (192, 1), (192, (1, 7), 1, (0, 3)), (192, (7, 1), 1, (3, 0)), (192, 3, 2)),
                self.net.max_pool(x, 3, 2),
            ]
        )

    def block_e(self, x: Value) -> Value:
        row, column = ((1, 3), 1, (0, 1)), ((3, 1), 1, (1, 0))
        two = self.conv(x, 384, 1)
        three = self.chain(x, (448, 1), (384, 3, 1, 1))
        return self.net.concat(
            [
                self.conv(x, 320, 1),
                self.conv(two, 384, *row),
                self.conv(two, 384, *column),
                self.conv(three, 384, *row),
                self.conv(three, 384, *column),
                self.conv(self.net.avg_pool(x, 3, 1, 1), 192, 1),
            ]
        )
