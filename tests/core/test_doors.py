"""Commands without a network are functions of the API too, with the same checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tvm_cascade import api
from tvm_cascade.errors import InfeasibleError, LoadError, UsageError

BUFFERS = "id,lower,upper,size\na,0,2,64\nb,1,3,32\nc,2,4,64\n"


def test_allocate(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(BUFFERS)
    made = api.allocate(tmp_path / "b.csv", capacity="1KiB", output=tmp_path / "out.csv")
    assert made["peak_bytes"] == 96 and made["optimal"]
    assert (tmp_path / "out.csv").read_text().startswith("id,lower,upper,size,offset")
    with pytest.raises(InfeasibleError):
        api.allocate(tmp_path / "b.csv", capacity=95)


def test_front_end(tmp_path: Path) -> None:
    made = api.front_end(output=tmp_path / "ear", name="ear", channels=20)
    assert {p.name for p in (tmp_path / "ear").iterdir()} == set(made.texts) and made.ram_bytes > 0
    with pytest.raises(UsageError, match="--channels"):
        api.front_end(output=tmp_path / "other", channels=0)


def test_targets() -> None:
    assert {"cortex-m4", "stm32f446re"} <= {one["name"] for one in api.targets()}


@pytest.mark.parametrize(("wrong", "error"), [({}, LoadError), ({"board": ""}, UsageError)])
def test_flash_refuses(tmp_path: Path, wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        api.flash(tmp_path, **wrong)
