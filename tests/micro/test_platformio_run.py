"""`pio run`: PlatformIO's own library finder and build system compile and link an exported library (`make test-packages`).

PlatformIO's registry has the platforms of real boards. Here a small platform takes the machine's cross compiler, and
PlatformIO's package of SCons is that of PyPI.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tvm_cascade.boards.board import load_board
from tvm_cascade.cores import get_core
from tvm_cascade.emit.elf import read_sections
from tvm_cascade.emit.export import export_folder
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.write_image import BuildOptions, write_image

M4 = get_core("cortex-m4")
PLATFORM = """\
from platformio.public import PlatformBase


class DebianarmPlatform(PlatformBase):
    def is_embedded(self):
        return True
"""
BUILDER = f"""\
from SCons.Script import Default, DefaultEnvironment

env, flags = DefaultEnvironment(), {[*M4.gcc_flags, "-Wall", "-Wextra", "-Werror"]}
tools = {{"AR": "ar", "CC": "gcc", "CXX": "g++", "RANLIB": "ranlib", "LINK": "g++"}}
env.Replace(PROGSUFFIX=".elf", **{{key: "arm-none-eabi-" + name for key, name in tools.items()}})
env.Append(CCFLAGS=flags, LINKFLAGS=[*flags, "--specs=nosys.specs"])
Default(env.BuildProgram())
"""
MAIN = "#include <toy.h>\n\nint main(void)\n{\n    return (int)toy_run(0, 0);\n}\n"


def put_scons(packages: Path) -> None:
    """The package `tool-scons` as PlatformIO would install it."""
    asked = import_module("platformio.dependencies").get_core_dependencies()["tool-scons"].removeprefix("~")
    place, named = packages / "tool-scons", {"name": "tool-scons", "version": asked}
    place.mkdir(parents=True)
    (place / "package.json").write_text(json.dumps(named | {"description": "SCons of PyPI"}))
    spec = {"owner": "platformio", "id": None, "name": "tool-scons", "requirements": None, "uri": None}
    (place / ".piopm").write_text(json.dumps(named | {"type": "tool", "spec": spec}))
    (place / "scons.py").write_text("import SCons.Script\nSCons.Script.main()\n")


@pytest.fixture
def place(tmp_path: Path, toy: EmittedNetwork, arm_gcc: None) -> Path:
    """A project with the exported library in its folder `lib`, for a platform that takes the machine's compiler."""
    if find_spec("platformio") is None or find_spec("SCons") is None:
        pytest.skip("no PlatformIO here: `make test-packages` gets it")
    put_scons(tmp_path / "core" / "packages")
    image = write_image(tmp_path / "p", (toy,), BuildOptions(M4, load_board("mps2-an386")))
    files = {
        "platform/platform.json": json.dumps({"name": "debianarm", "title": "Arm", "version": "1.0.0", "packages": {}}),
        "platform/platform.py": PLATFORM,
        "platform/builder/main.py": BUILDER,
        "project/src/main.c": MAIN,
        "project/platformio.ini": f"[env:m4]\nplatform = symlink://{tmp_path / 'platform'}\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    export_folder(image.folder, "platformio", tmp_path / "project" / "lib" / "toy")
    return tmp_path


def pio_run(place: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PLATFORMIO_CORE_DIR": str(place / "core"), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "platformio", "run", "-d", str(place / "project")]
    return subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, check=False)


def test_a_library_is_found_compiled_and_linked(place: Path) -> None:
    done = pio_run(place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "|-- toy @ 1.0.0" in done.stdout
    assert read_sections(place / "project" / ".pio" / "build" / "m4" / "program.elf")
    manifest = place / "project" / "lib" / "toy" / "library.json"
    manifest.write_text(manifest.read_text().replace('"includeDir": "include"', '"includeDir": "elsewhere"'))
    assert "toy.h: No such file" in pio_run(place).stderr  # the manifest is what it builds by
