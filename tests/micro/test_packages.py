"""Packages for other build systems, by their real tools where those can be had, else with stand-ins for what they provide."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.boards.board import load_board
from tvm_cascade.cores import get_core
from tvm_cascade.emit.bundle import write_bundle
from tvm_cascade.emit.export import export_folder
from tvm_cascade.emit.image import Image
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.packages import KINDS
from tvm_cascade.emit.packages.platformio import own_environment
from tvm_cascade.emit.write_image import BuildOptions, write_image
from tvm_cascade.errors import UsageError
from tvm_cascade.testing.streaming import wake_word

M4, BOARD = get_core("cortex-m4"), load_board("mps2-an386")
FOR_ALL_CORES = ["esp-idf", "platformio", "rust"]  # kinds whose boards have cores of several families
ARM_FLAGS = [*M4.gcc_flags, "-Wall", "-Wextra", "-Werror"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, toy: EmittedNetwork) -> Image:
    return write_image(tmp_path_factory.mktemp("p") / "p", (toy,), BuildOptions(M4, BOARD))


@pytest.fixture(scope="module")
def duo(
    tmp_path_factory: pytest.TempPathFactory, project: Image, streaming_toy: EmittedNetwork, renamed: Callable
) -> Image:
    """A bundle of a network and of one with a streamed input, whose name is a keyword of Rust's."""
    folder = tmp_path_factory.mktemp("duo")
    rows = write_image(folder / "rows", (renamed(streaming_toy, "match"),), BuildOptions(M4, BOARD))
    return write_bundle(folder / "duo", [project, rows], BOARD)


def with_objects(folder: Path, toy: EmittedNetwork, core: str = "cortex-m4") -> Image:
    """The toy network as `--emit obj` has it: its weights as a compiled object."""
    target = get_core(core)
    (folder / "w.c").write_bytes(toy.files["toy_weights.c"])
    prefix = target.family.prefix
    command = [f"{prefix}gcc", *target.gcc_flags, "-c", str(folder / "w.c"), "-o", str(folder / "w.o")]
    subprocess.run(command, check=True)
    files = {"toy.h": toy.files["toy.h"], "toy.c": toy.files["toy.c"], "toy_kernels.o": (folder / "w.o").read_bytes()}
    network = replace(toy, files=files, sources=("toy.c",), objects=("toy_kernels.o",))
    return write_image(folder / "po", (network,), BuildOptions(target, load_board(target.default_board)))


def tool(name: str) -> str:
    """A program on the path, or beside this interpreter."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"no {name} here: `make test-packages` gets it")
    return found


def run(command: Sequence[str | Path], **more: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=300, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_every_kind_writes_the_network_and_an_example(tmp_path: Path, duo: Image) -> None:
    assert set(KINDS) == {"arduino", "cmsis-pack", "esp-idf", "platformio", "rust", "stm32cube", "zephyr"}
    for kind in KINDS:
        files = export_folder(duo.folder, kind, tmp_path / kind)
        for name in ("toy.h", "toy.c", "match.h", "match.c", "arena.c", "README.md"):
            assert any(Path(file).name == name for file in files), (kind, name)
        texts = [(tmp_path / kind / f).read_text() for f in files if Path(f).suffix not in (".c", ".h", ".pack")]
        assert not [word for text in texts for word in re.findall(r"@\w+@", text)], kind
        assert sum("example" in file or "sample" in file for file in files), kind
        assert export_folder(duo.folder, kind, tmp_path / f"{kind}2") == files
        for file in files:  # the same bytes every time
            assert (tmp_path / kind / file).read_bytes() == (tmp_path / f"{kind}2" / file).read_bytes()


@pytest.mark.parametrize("kind", FOR_ALL_CORES)
def test_compiled_kernels_are_refused_where_boards_have_several_cores(
    kind: str, tmp_path: Path, toy: EmittedNetwork, arm_gcc: None
) -> None:
    with pytest.raises(UsageError, match=r"compiled for cortex-m4: compile with --emit c"):
        export_folder(with_objects(tmp_path, toy).folder, kind, tmp_path / "out")


@pytest.mark.parametrize("kind", ["cmsis-pack", "stm32cube"])
def test_kernels_compiled_for_another_family_are_refused(kind: str, tmp_path: Path, toy: EmittedNetwork) -> None:
    network = replace(toy, files={**toy.files, "toy_kernels.o": b"not looked into"}, objects=("toy_kernels.o",))
    image = write_image(tmp_path / "p", (network,), BuildOptions(get_core("riscv32"), load_board("riscv32-virt")))
    with pytest.raises(UsageError, match=r"compiled for riscv32: compile with --emit c"):
        export_folder(image.folder, kind, tmp_path / "out")


def compiled(sources: Sequence[Path], include: Path, folder: Path) -> list[str]:
    """The symbols that are defined and undefined where all `sources` are linked into one object."""
    objects = []
    for source in sources:
        objects.append(folder / f"{source.stem}.o")
        run(["arm-none-eabi-gcc", *ARM_FLAGS, f"-I{include}", "-c", source, "-o", objects[-1]])
    run(["arm-none-eabi-gcc", *M4.gcc_flags, "-r", "-nostdlib", *objects, "-o", folder / "all.o"])
    return run(["arm-none-eabi-nm", folder / "all.o"]).stdout.splitlines()


# -- CMSIS-Pack --------------------------------------------------------------------------------------------------------


def check_pdsc(path: Path) -> ET.Element:
    """Rules of PACK.xsd and of packchk that concern what is exported; returns the component."""
    root = ET.parse(path).getroot()
    assert root.tag == "package" and root.get("schemaVersion")
    order = [child.tag for child in root]
    assert set(order) <= {
        "vendor",
        "name",
        "description",
        "url",
        "requirements",
        "releases",
        "conditions",
        "components",
    }
    assert {"vendor", "name", "description", "url", "releases"} <= set(order) and len(order) == len(set(order))
    vendor, name = root.findtext("vendor"), root.findtext("name")
    for text in (vendor, name):
        assert re.fullmatch(r"[\-_A-Za-z0-9]+", text or "")
    assert path.name == f"{vendor}.{name}.pdsc"
    assert 0 < len(root.findtext("description") or "") <= 256
    (release,) = root.findall("releases/release")
    assert re.fullmatch(r"\d+\.\d+\.\d+", release.get("version") or "")
    (component,) = root.findall("components/component")
    for key in ("Cclass", "Cgroup", "Csub"):
        assert re.fullmatch(r"[\-_A-Za-z0-9 /()]{2,}", component.get(key) or "")
    conditions = {one.get("id") for one in root.findall("conditions/condition")}
    assert {component.get("condition")} - {None} == conditions
    for file in component.findall("files/file"):
        assert file.get("category") in {"doc", "header", "include", "library", "source"}
        place = path.parent / (file.get("name") or "")
        assert place.is_dir() if file.get("category") == "include" else place.is_file()
        assert (file.get("attr") == "template") == (file.get("select") is not None)
    return component


@pytest.mark.parametrize("objects", [False, True])
def test_cmsis_pack(objects: bool, tmp_path: Path, toy: EmittedNetwork, project: Image, arm_gcc: None) -> None:
    image = with_objects(tmp_path, toy) if objects else project
    files = export_folder(image.folder, "cmsis-pack", tmp_path / "pack")
    component = check_pdsc(tmp_path / "pack" / "tvm_cascade.toy.pdsc")
    named = [(f.get("category"), f.get("name")) for f in component.findall("files/file")]
    assert (("library", "lib/libtoy_kernels.a") in named) == objects
    text = (tmp_path / "pack" / "tvm_cascade.toy.pdsc").read_text()
    assert re.findall(r'accept Dcore="([^"]+)"', text) == (
        ["Cortex-M4", "Cortex-M7", "Cortex-M33", "Cortex-M55"] * objects
    )
    (archive,) = [name for name in files if name.endswith(".pack")]
    with zipfile.ZipFile(tmp_path / "pack" / archive) as pack:
        assert pack.testzip() is None
        assert sorted(pack.namelist()) == sorted(set(files) - {archive})
        pack.extractall(tmp_path / "installed")
    # what a csolution project compiles: the component's sources, and the template that it copies
    root = tmp_path / "installed"
    sources = [root / name for kind, name in named if kind == "source" and name]
    symbols = compiled(sources, root / "include", tmp_path)
    assert any(line.endswith(" T toy_example") for line in symbols)
    assert any(line.endswith(" U toy_weights") for line in symbols) == objects


# -- STM32CubeIDE ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objects", [False, True])
def test_stm32cube_folder(objects: bool, tmp_path: Path, toy: EmittedNetwork, duo: Image, arm_gcc: None) -> None:
    """As STM32CubeIDE compiles it (all C below Middlewares), and as a project that CubeMX made for CMake does."""
    image, name = (with_objects(tmp_path, toy), "toy") if objects else (duo, "duo")
    project = tmp_path / "project"
    export_folder(image.folder, "stm32cube", project)
    place = project / "Middlewares" / "Third_Party" / name
    symbols = compiled(sorted(project.rglob("*.c")), place / "Inc", tmp_path)
    assert any(line.endswith(f" T {name}_example") for line in symbols)
    (project / "main.c").write_text(
        f"#include <stdint.h>\nint32_t {name}_example(void);\nint main(void) {{ return (int){name}_example(); }}\n"
    )
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(board C)\nadd_executable(board main.c)\n"
        "target_link_options(board PRIVATE --specs=nosys.specs)\n"
        "add_library(stm32cubemx INTERFACE)\ntarget_compile_definitions(stm32cubemx INTERFACE STM32F446xx)\n"
        + "\n".join(re.findall(r"```cmake\n(.*?)```", (project / "README.md").read_text(), re.S))
    )
    flags = " ".join(ARM_FLAGS)
    tools = ["-DCMAKE_SYSTEM_NAME=Generic", "-DCMAKE_C_COMPILER=arm-none-eabi-gcc", f"-DCMAKE_C_FLAGS={flags}"]
    tools += ["-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY"]
    run([tool("cmake"), "-S", project, "-B", tmp_path / "b", *tools])
    run([tool("cmake"), "--build", tmp_path / "b"])
    assert (tmp_path / "b" / "board").exists()


# -- ESP-IDF -----------------------------------------------------------------------------------------------------------

# what a component and the example use of ESP-IDF's build system
IDF = """\
set(COMPONENT_LIB __idf_${name})
function(idf_component_register)
  cmake_parse_arguments(C "" "" "SRCS;INCLUDE_DIRS;REQUIRES" ${ARGN})
  get_filename_component(name ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  set(COMPONENT_LIB __idf_${name} PARENT_SCOPE)
  add_library(__idf_${name} STATIC ${C_SRCS})
  if(C_INCLUDE_DIRS)
    target_include_directories(__idf_${name} PUBLIC ${C_INCLUDE_DIRS})
  endif()
endfunction()
"""


def test_esp_idf_component(tmp_path: Path, duo: Image) -> None:
    component = tmp_path / "duo"
    export_folder(duo.folder, "esp-idf", component)
    example = component / "examples" / "duo"
    text = (example / "main" / "idf_component.yml").read_text()
    (override,) = re.findall(r'override_path: "(.+)"', text)
    assert (example / "main" / override).resolve() == component
    idf = tmp_path / "idf" / "tools" / "cmake"
    idf.mkdir(parents=True)
    (idf / "project.cmake").write_text(IDF)
    (example / "main" / "esp_timer.h").write_text(
        "static inline long esp_timer_get_time(void) { static long t; return ++t; }\n"
    )
    # project() of ESP-IDF reads the components: the dependency of the example's manifest, then main
    listed = (example / "CMakeLists.txt").read_text()
    listed += f"add_subdirectory({component} component)\nadd_subdirectory(main)\n"
    listed += "target_link_libraries(__idf_main PUBLIC __idf_duo)\nadd_executable(app host.c)\n"
    (example / "CMakeLists.txt").write_text(listed + "target_link_libraries(app __idf_main)\n")
    (example / "host.c").write_text("void app_main(void);\nint main(void) { app_main(); return 0; }\n")
    environment = {"IDF_PATH": str(tmp_path / "idf"), "PATH": os.environ["PATH"]}
    run([tool("cmake"), "-S", example, "-B", tmp_path / "b", "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror"], env=environment)
    run([tool("cmake"), "--build", tmp_path / "b"], env=environment)
    # the example gives the streamed input no rows: its callback says so, the other network runs
    told = run([tmp_path / "b" / "app"]).stdout
    assert re.match(r"toy: status 0, us 1(, class \d+)?\nmatch: status ", told), told


def test_esp_idf_manifests_by_its_own_tool(tmp_path: Path, duo: Image) -> None:
    compote = tool("compote")
    export_folder(duo.folder, "esp-idf", tmp_path / "duo")
    run([compote, "-W", "manifest", "lint", tmp_path / "duo"])
    manifest = tmp_path / "duo" / "idf_component.yml"
    manifest.write_text(manifest.read_text().replace(">=5.0", "five"))
    done = subprocess.run([compote, "manifest", "lint", tmp_path / "duo"], capture_output=True, check=False)
    assert done.returncode != 0  # the tool does look


# -- PlatformIO --------------------------------------------------------------------------------------------------------


def test_platformio_library(tmp_path: Path, duo: Image) -> None:
    """By the schema of library.json; `make test-packages` packs it with PlatformIO itself."""
    library = tmp_path / "duo"
    export_folder(duo.folder, "platformio", library)
    manifest = json.loads((library / "library.json").read_text())
    assert re.fullmatch(r"[A-Za-z0-9 _.-]{1,100}", manifest["name"]) and manifest["version"] == "1.0.0"
    assert manifest["headers"] == ["toy.h", "match.h"]
    assert all((library / manifest["build"]["includeDir"] / name).is_file() for name in manifest["headers"])
    (example,) = manifest["examples"]
    assert all((library / example["base"] / name).is_file() for name in example["files"])
    ini = (library / example["base"] / "platformio.ini").read_text()
    for name in re.findall(r"lib_deps = symlink://(.*)", ini):
        assert (library / example["base"] / name).resolve() == library


def test_platformio_names_the_board_of_the_project() -> None:
    boards = (("ststm32", "nucleo_f446re"), ("raspberrypi", "pico"))
    assert [own_environment(b, boards) for b in ("nucleo-f446re", "mps2-an386")] == ["nucleo_f446re", "pico"]


def test_platformio_packs_the_library(tmp_path: Path, duo: Image) -> None:
    pio = tool("pio")
    export_folder(duo.folder, "platformio", tmp_path / "duo")
    environment = {"PLATFORMIO_CORE_DIR": str(tmp_path / "core"), "PATH": os.environ["PATH"]}
    run([pio, "pkg", "pack", "-o", tmp_path / "duo.tar.gz", tmp_path / "duo"], env=environment, cwd=tmp_path)
    assert (tmp_path / "duo.tar.gz").stat().st_size > 1000
    manifest = tmp_path / "duo" / "library.json"
    manifest.write_text(manifest.read_text().replace('"version": "1.0.0"', '"version": []'))
    wrong = subprocess.run(
        [pio, "pkg", "pack", "-o", tmp_path / "x.tar.gz", tmp_path / "duo"],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert wrong.returncode != 0  # the tool does look


# -- Rust --------------------------------------------------------------------------------------------------------------

USE = """
use duo_network::{Error, Networks};

fn main() {
    let a: [u8; 24] = @A@;
    let b: [u8; 24] = @B@;
    let mut networks = Networks::take().unwrap();
    assert!(Networks::take().is_none());
    let mut toy = networks.toy();
    toy.a().iter_mut().zip(a).for_each(|(to, from)| *to = from as i8);
    toy.b().iter_mut().zip(b).for_each(|(to, from)| *to = from as i8);
    println!("{:?}", toy.run().unwrap().y);
    let mut rows = networks.r#match();
    rows.a().iter_mut().zip(a).for_each(|(to, from)| *to = from as i8);
    let mut asked = 0;
    let outputs = rows.run(|row, to| {
        asked += 1;
        to.iter_mut().zip(&b[4 * row..]).for_each(|(to, from)| *to = *from as i8);
        0
    });
    println!("{:?}", outputs.unwrap().y);
    assert_eq!(asked, 6);
    assert_eq!(rows.run(|row, _to| if row == 2 { 7 } else { 0 }).err(), Some(Error(@ENDED@)));
}
"""


def test_rust_crates_compute_what_the_network_does(
    tmp_path: Path, duo: Image, toy_inputs: list[tuple[np.ndarray, np.ndarray]], reference: Callable
) -> None:
    cargo = tool("cargo")
    crates = tmp_path / "crates"
    export_folder(duo.folder, "rust", crates)
    a, b = toy_inputs[0]
    use = crates / "duo_network" / "examples" / "use.rs"
    text = USE.replace("@A@", str(list(a.tobytes()))).replace("@B@", str(list(b.tobytes()))).replace("@ENDED@", "-3")
    use.write_text(text)

    def done(*words: str) -> str:
        return run([cargo, *words, "--offline", "--quiet"], cwd=crates).stdout

    printed = [json.loads(line) for line in done("run", "--example", "use").splitlines()]
    assert printed == [reference(a, b).ravel().tolist()] * 2
    assert re.findall(r"(\w+) y \[", done("run", "--example", "run")) == ["toy", "match"]
    # outputs are borrowed: the next run cannot come before they are dropped
    use.write_text(
        text.replace('println!("{:?}", toy.run().unwrap().y);', "let y = toy.run().unwrap().y; toy.a(); drop(y);")
    )
    wrong = subprocess.run(
        [cargo, "build", "--offline", "--example", "use"], cwd=crates, capture_output=True, check=False
    )
    assert b"E0499" in wrong.stderr


KEEPS = """
use wake_network::Networks;

fn main() {
    let mut networks = Networks::take().unwrap();
    let mut wake = networks.wake();
    let mut made = Vec::new();
    for _ in 0..2 {
        wake.reset().unwrap();
        for k in 0..8i32 {
            wake.row().iter_mut().enumerate().for_each(|(i, to)| *to = (i as i32 * 37 + k * 11) as i8);
            made.push(*wake.run().unwrap().labels);
        }
    }
    println!("{:?}", made);
}
"""


def test_rust_crates_keep_and_reset_states(tmp_path: Path, emulator: None, quick_host: None) -> None:
    cargo = tool("cargo")
    (tmp_path / "wake.tflite").write_bytes(wake_word())
    tvm_cascade.compile(tmp_path / "wake.tflite", target="cortex-m4", output=tmp_path / "p")
    export_folder(tmp_path / "p", "rust", tmp_path / "crates")
    (tmp_path / "crates" / "wake_network" / "examples" / "use.rs").write_text(KEEPS)
    made = json.loads(run([cargo, "run", "--offline", "--quiet", "--example", "use"], cwd=tmp_path / "crates").stdout)
    assert made[:8] == made[8:] and len({tuple(labels) for labels in made}) > 4
