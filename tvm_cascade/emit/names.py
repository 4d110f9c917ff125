"""Sanitise names from a model: C identifiers, names of networks and files, text in C comments."""

from __future__ import annotations

import re
from collections.abc import Callable

# Words of C23, C++20 and GNU C, and macros of standard headers and compilers that look like names.
RESERVED = frozenset(
    """alignas alignof and and_eq asm assert auto bitand bitor bool break case catch char char16_t char32_t char8_t class
    co_await co_return co_yield compl complex concept const const_cast consteval constexpr constinit continue decltype
    default delete do double dynamic_cast else enum environ errno explicit export extern false float for friend goto i386
    if imaginary inline int linux long mutable namespace new noexcept noreturn not not_eq nullptr operator or or_eq private
    protected public register reinterpret_cast requires restrict return short signed sizeof static static_assert
    static_cast stderr stdin stdout struct switch template this thread_local throw true try typedef typeid typename typeof
    typeof_unqual union unix unsigned using virtual void volatile wchar_t while xor xor_eq arena flash main""".split()  # noqa: SIM905 - a list would be five times as long
)
# Names that no network may have: its header would hide one of C or of the project, or CMake reserves the name.
_TAKEN = frozenset(
    """board constants measure networks port port_host port_semihosting profile serial_main startup uart alloca assert complex
    ctype errno fenv float inttypes iso646 limits locale malloc math memory regex sched setjmp signal stdalign stdarg stdatomic
    stdbool stddef stdint stdio stdlib stdnoreturn string strings tgmath threads time uchar unistd wchar wctype arm_acle
    arm_mve arduino all app clean edit_cache help install kernel list_install_components m package package_source
    rebuild_cache test zephyr""".split()  # noqa: SIM905
)


def c_identifier(text: str, fallback: str = "network") -> str:
    """Convert `text` to a C identifier in lower case: at most 40 characters of [a-z0-9_], no keyword, no leading digit."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").lower()[:40].rstrip("_")
    if not name:
        name = fallback
    if name[0].isdigit():
        name = f"n{name}"
    return f"{name}_" if name in RESERVED else name


def network_identifier(text: str) -> str:
    """Convert `text` to a name for a network: for files, functions and the CMake target."""
    name = c_identifier(text)
    return f"{name}_" if name in _TAKEN else name


def unique_identifier(text: str, fallback: str, taken: Callable[[str], bool]) -> str:
    """Convert `text` to a C identifier for which `taken` is False; append a number if needed."""
    stem = c_identifier(text, fallback)
    name, k = stem, 1
    while taken(name):
        k += 1
        name = f"{stem}_{k}"
    return name


def c_comment(text: str) -> str:
    """Convert `text` for the inside of a C comment: printable ASCII, at most 80 characters, and nothing that ends the
    comment.
    """
    text = text if len(text) <= 80 else f"{text[:77]}..."
    return re.sub(r"[^ -~]", "?", text).replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")
