"""The tutorials as a gallery: pages of sphinx-gallery, scripts, and notebooks that open in Colab."""

from __future__ import annotations

import shutil
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx  # pyright: ignore[reportMissingImports]

from cascade_site.repository import REPOSITORY, ROOT

FOLDER = "tutorials"  # of the repository, and of the site
RUN = ("01", "03", "06", "07", "08", "09", "10")  # with the site; the others take minutes, or measure the machine
_STAGE = ROOT / "build" / "docs" / "gallery"  # tutorials run here, and write their folders here


def settings() -> dict[str, Any]:
    """The configuration of sphinx-gallery, and the tutorials in the folder in which it runs them."""
    _STAGE.mkdir(parents=True, exist_ok=True)
    for source in (*(ROOT / FOLDER).glob("*.py"), *(ROOT / FOLDER).glob("*.rst")):
        shutil.copy2(source, _STAGE / source.name)
    return {
        "examples_dirs": [str(_STAGE)],
        "gallery_dirs": [FOLDER],
        "filename_pattern": rf"/({'|'.join(RUN)})_[^/]*\.py$",
        "within_subsection_order": "FileNameSortKey",
        "first_notebook_cell": _first_cell(),
        "image_scrapers": (),
        "reset_modules": (),
        "abort_on_example_error": True,
        "download_all_examples": False,
        "write_computation_times": False,
        "min_reported_time": 1_000_000,  # seconds are those of the machine that built the site
        "show_signature": False,
        "remove_config_comments": True,
    }


def _first_cell() -> str:
    """What a notebook begins with: the checkout that the tutorials need, and their tools."""
    address = REPOSITORY.address or "REPOSITORY"
    known = "" if REPOSITORY.address else "# REPOSITORY is the address that you got the project from.\n"
    return (
        "# The project with its sample networks, the cross compiler and the emulator, on a machine of Colab's. Run this once.\n"
        f"{known}!git clone -q --depth 1 {address} tvm_cascade\n"
        "%cd tvm_cascade\n"
        "%pip install -q -e '.[check,onnx,plot]' onnxscript ai-edge-quantizer\n"
        "!apt-get -q install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm >/dev/null"
    )


def _with_colab(app: Sphinx, doctree: nodes.document) -> None:
    """Begin a tutorial's page with the link that opens its notebook, where the repository is published."""
    folder, _, name = app.env.docname.rpartition("/")
    address = REPOSITORY.notebook(f"{FOLDER}/{name}.ipynb")
    if folder != FOLDER or name == "index" or not address:
        return
    link = nodes.reference("", "Open this tutorial as a notebook in Colab", refuri=address)
    title = next(iter(doctree.findall(nodes.title)))
    title.parent.insert(title.parent.index(title) + 1, nodes.paragraph("", "", link))


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", _with_colab)
