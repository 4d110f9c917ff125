from __future__ import annotations

import pytest

from tvm_cascade.errors import UsageError
from tvm_cascade.sizes import bytes_and_unit, parse_frequency, parse_input_shape, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("65536", 65536),
        ("64KiB", 65536),
        ("64kB", 64000),
        ("64 kib", 65536),
        ("1MiB", 1 << 20),
        ("0.5KiB", 512),
        ("7b", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "KiB", "-4", "4 TB", "1.5", "0x10", "64K iB"])
def test_what_is_no_size_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(UsageError, match="64KiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "hertz"),
    [("168MHz", 168_000_000), ("1.5GHz", 1_500_000_000), ("32768", 32768), ("8 mhz", 8_000_000), ("32.768kHz", 32768)],
)
def test_frequencies(text: str, hertz: int) -> None:
    assert parse_frequency(text) == hertz


@pytest.mark.parametrize("text", ["", "MHz", "-4", "0", "1.5", "168M", "0.0001Hz", "168 THz", "168", "0.5kHz"])
def test_what_is_no_frequency_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(UsageError, match="168MHz"):
        parse_frequency(text)


def test_input_shapes() -> None:
    assert parse_input_shape("data=1,3,224,224") == ("data", (1, 3, 224, 224))
    assert parse_input_shape("a=b=4") == ("a=b", (4,))


@pytest.mark.parametrize("text", ["data", "=1,2", "data=", "data=1,x", "data=1,0", "data=1,-2"])
def test_what_is_no_input_shape_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="NAME=1,3,224,224"):
        parse_input_shape(text)


def test_bytes_have_a_unit_beside_them_where_it_reads_better() -> None:
    assert [bytes_and_unit(v) for v in (456, 7088, 3 << 20)] == [
        "456 bytes",
        "7088 bytes (6.9 KiB)",
        "3145728 bytes (3.00 MiB)",
    ]
