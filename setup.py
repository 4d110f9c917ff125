"""Packaging: `passes/` and `schedules/` stand at the top level and are installed inside of `tvm_cascade`."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
LINKED = ("passes", "schedules")


def packages() -> list[str]:
    """Every package of the project under the name it is imported by."""
    core = [p for p in find_packages(str(HERE), include=["tvm_cascade", "tvm_cascade.*"])]
    core = [p for p in core if not any(p == f"tvm_cascade.{l}" or p.startswith(f"tvm_cascade.{l}.") for l in LINKED)]
    linked = [f"tvm_cascade.{p}" for l in LINKED for p in [l, *(f"{l}.{q}" for q in find_packages(str(HERE / l)))]]
    return core + linked


setup(
    name="tvm-cascade",
    version="0.1.0",
    description="Memory and latency scheduling for Apache TVM: networks that fit, programs that run faster",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=packages(),
    package_dir={
        "tvm_cascade": "tvm_cascade",
        "tvm_cascade.passes": "passes",
        "tvm_cascade.schedules": "schedules",
    },
    package_data={
        "tvm_cascade.micro": ["boards/*.json", "templates/*"],
        "tvm_cascade.testing": ["data/*"],
        "tvm_cascade.schedules": ["data/*"],
    },
    install_requires=[
        "apache-tvm>=0.27",
        "apache-tvm-ffi>=0.1.14.post0,<0.1.15",  # what 0.27 was built with; with 0.1.15 saving JSON of TVM's types crashes
        "numpy>=2",
        "scipy",
        "xgboost",
        "tflite",
        "flatbuffers",
        "click>=8.1",
    ],
    extras_require={
        "onnx": ["onnx"],
        "torch": ["torch"],
        "plot": ["matplotlib"],
        "test": ["pytest", "pytest-xdist", "onnx", "onnxruntime", "matplotlib", "ai-edge-litert", "kconfiglib"],
        "lint": ["ruff", "pyright"],
    },
    entry_points={"console_scripts": ["tvm-cascade = tvm_cascade.cli:main"]},
)
