"""Lines that tests of the serial protocol put between a host and a board."""

from __future__ import annotations

import os
import threading
import time
import tty
from pathlib import Path
from types import SimpleNamespace

from tvm_cascade.testing.serial_lines import BadLine


def test_a_line_whose_host_no_longer_reads_stops(tmp_path: Path) -> None:
    board, port = os.openpty()
    tty.setraw(port)
    os.set_blocking(board, False)
    line = BadLine(tmp_path / "port", lambda: SimpleNamespace(port=os.ttyname(port), stop=lambda: None), 0.0, {})  # type: ignore[arg-type]
    carried, until = -1, time.monotonic() + 20
    while carried < 8192 and time.monotonic() < until:  # more than the port of the host holds
        carried = line.carried
        for _ in range(50):
            try:
                os.write(board, bytes(256))
            except BlockingIOError:
                break
        time.sleep(0.2)
    assert carried >= 8192  # lost, since nobody reads
    stopping = threading.Thread(target=line.stop, daemon=True)
    stopping.start()
    stopping.join(10)
    assert not stopping.is_alive()
    os.close(board)
    os.close(port)
