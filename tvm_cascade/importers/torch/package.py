"""Import of torch, an optional dependency, on use."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from tvm_cascade import extras
from tvm_cascade.errors import MissingToolError


def torch_package() -> Any:
    """Return the module `torch`, with the operators for quantized networks registered.

    Raises
    ------
    MissingToolError
        Where it is not installed.
    """
    try:
        torch = import_module("torch")
        import_module("torch.ao.quantization.fx._decomposed")
    except ImportError as error:
        raise MissingToolError("torch", f"{extras.remedy('torch')}, or export the model to .onnx") from error
    return torch


def torchao_package() -> Any:
    """Return the module `torchao`, which registers its operators for quantized networks.

    Raises
    ------
    MissingToolError
        If it is not installed.
    """
    try:
        with quietly():
            return import_module("torchao.quantization")
    except ImportError as error:
        raise MissingToolError("torchao", f"{extras.remedy('torchao')}, or export the model to .onnx") from error


@contextmanager
def quietly() -> Iterator[None]:
    """Silence torch and the importer, whose warnings need no action by users."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
