"""Compiler options for a compiled folder, and the CMake text for a network's library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm_cascade.errors import UsageError

OPTIMISATION: Mapping[str, str] = {"size": "-Os", "balanced": "-O2", "speed": "-O3"}
COMPILE_FLAGS = (
    "-std=c99", "-Wall", "-Wextra", "-ffunction-sections", "-fdata-sections", "-fno-common",
    "-fno-strict-aliasing",  # one arena holds values of several types, and words are copied as words
)  # fmt: skip


def compile_flags(optimise: str) -> tuple[str, ...]:
    """Return the compiler options for everything in a folder; raise `UsageError` for an unknown `optimise`."""
    if optimise not in OPTIMISATION:
        raise UsageError(f"unknown optimisation {optimise!r}; known: {', '.join(OPTIMISATION)}")
    return (*COMPILE_FLAGS, OPTIMISATION[optimise])


def cmake_library(
    name: str, sources: Sequence[str], objects: Sequence[str], flags: Sequence[str], defines: Sequence[str] = ()
) -> str:
    """Write CMake text for the library `<name>_network`; `defines` also apply to all users of the library (PUBLIC)."""
    library = f"{name}_network"
    lines = [
        f"add_library({library} STATIC {' '.join((*sources, *objects))})",
        f"target_compile_options({library} PRIVATE ${{TARGET_FLAGS}} ${{COMPILE_FLAGS}} {' '.join(flags)})",
        f"target_include_directories({library} PUBLIC ${{CMAKE_CURRENT_LIST_DIR}})",
        *([f"target_compile_definitions({library} PUBLIC {' '.join(defines)})"] if defines else []),
        f"target_link_libraries({library} PUBLIC m)",
        *(
            [f"set_source_files_properties({' '.join(objects)} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)"]
            * bool(objects)
        ),
    ]
    return "\n".join(lines) + "\n"
