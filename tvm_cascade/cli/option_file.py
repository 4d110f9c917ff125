"""`tvm-cascade.toml`: options for a model in a file beside it, used unless given on the command line.

    sram = "64KiB"
    input-shape = { image = [1, 224, 224, 3] }

    ["detector.onnx"]       # of this model alone, where several lie in the folder
    until = ["boxes", "scores"]

Keys are the options of `plan` and `compile`, without dashes; an option with a form `--no-...` is true or false. A
command takes the options it has, in the same meaning: `stages` and `optimize` have another `--target`. The path to a
board's file is relative to the toml file. Options that write files or run programs are taken from the command line
alone, so a folder made by somebody else cannot set them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from tvm_cascade.cli.guard import say
from tvm_cascade.messages import printable
from tvm_cascade.plain_files import readable
from tvm_cascade.request import COMPILE_OPTIONS, PLAN_OPTIONS, LoadRequest

NAME = "tvm-cascade.toml"
EPILOG = (
    f'Options of a model may also stand in a file {NAME} beside it, such as: sram = "64KiB". The command line wins.'
)
LOADING = tuple(f.name for f in fields(LoadRequest))  # fields that every command may take
PLANNING = PLAN_OPTIONS
WRITING = ("database", "tune", "metaschedule", "trials", "report", "cache")  # write files, run programs, or serve those
ALL = ("target", *(name for name in COMPILE_OPTIONS if name not in WRITING))

Callback = Callable[[click.Context, click.Parameter, Path], Path]


def key_of(name: str) -> str:
    """Return the key of an option: the spelling on the command line."""
    return {"input_shapes": "input-shape", "from_": "from"}.get(name, name.replace("_", "-"))


KEYS = {key_of(name): name for name in ALL}


def beside(taken: tuple[str, ...]) -> Callback:
    """Make the callback for the argument MODEL, processed first: options in `taken` get defaults from the file beside
    the model.

    Raises `click.UsageError` for an unreadable file, an unknown key, or a value not allowed for an option.
    """

    def callback(context: click.Context, _argument: click.Parameter, model: Path) -> Path:
        path = model.parent / NAME
        if context.resilient_parsing or not path.is_file():
            return model
        options = {p.name: p for p in context.command.params if isinstance(p, click.Option) and p.name in taken}
        said = {n: value for n, value in _options_of(path, model.name).items() if n in options}
        given = {n: [v] if options[n].multiple and isinstance(v, str) else v for n, v in said.items()}
        for name, value in given.items():
            try:
                _require_form(options[name], value)
                options[name].process_value(context, value)
            except click.UsageError as error:
                raise click.UsageError(f"{printable(str(path))}: {key_of(name)}: {error.message}") from None
        context.default_map = given
        if given:
            say(f"options of {path}: {', '.join(map(key_of, given))}")
        return model

    return callback


def _require_form(option: click.Option, value: object) -> None:
    """Raise `click.UsageError` unless a value has the option's form: true or false, text or number, or many."""
    if option.is_flag:
        fits, form = isinstance(value, bool), "true or false"
    else:
        number = not isinstance(option.type, click.Path)
        forms = (str, int, float) if number else (str,)
        many = value if option.multiple and isinstance(value, list) else [value]
        fits = all(isinstance(v, forms) and not isinstance(v, bool) for v in many)
        form = "a text or a number" if number else "a text"
    if not fits:
        raise click.UsageError(f"write {form}")


def _options_of(path: Path, model: str) -> dict[str, Any]:
    """Read options by field name: first the common options, then the options of `model`."""
    table = _table(path)
    own = {key: value for key, value in table.items() if _is_model(key, value)}
    common = {key: value for key, value in table.items() if key not in own}
    for part in (common, *own.values()):
        _refuse_unknown(part, path)
    return {KEYS[key]: _spelled(KEYS[key], value, path.parent) for key, value in (common | own.get(model, {})).items()}


def _table(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found]
    try:
        return tomllib.loads(readable(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"{printable(str(path))}: {error.strerror}") from None
    except RecursionError:
        raise click.UsageError(f"{printable(str(path))}: its brackets are nested too deep") from None
    except ValueError as error:  # of TOML, and of UTF-8
        raise click.UsageError(f"{printable(str(path))}: {printable(str(error))}") from None


def _is_model(key: str, value: object) -> bool:
    return isinstance(value, Mapping) and Path(key).suffix != ""


def _refuse_unknown(table: Mapping[str, Any], path: Path) -> None:
    for key in table:
        if key in map(key_of, WRITING):
            raise click.UsageError(
                f"{printable(str(path))}: {key} is for the command line alone: files beside a model may not name what is "
                f"written or run; give --{key} there"
            )
        if key not in KEYS:
            close = get_close_matches(key, KEYS, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            known = f"{hint}known: {', '.join(KEYS)}, and tables named by a model's file"
            raise click.UsageError(f"{printable(str(path))}: unknown key {printable(repr(key))}; {known}")


def _beside(text: Any, folder: Path) -> Any:
    """Make the file in a text NAME=FILE.npy relative to the options' folder."""
    name, _, value = str(text).rpartition("=")
    return f"{name}={os.path.join(folder, value)}" if value.endswith(".npy") else text


def _spelled(name: str, value: Any, folder: Path) -> Any:
    """Convert a value from the file to the spelling on the command line."""
    if name == "input_shapes" and isinstance(value, Mapping):
        return [
            f"{one}={','.join(map(str, shape if isinstance(shape, list) else [shape]))}" for one, shape in value.items()
        ]
    if name == "input_value":
        given = [f"{one}={v}" for one, v in value.items()] if isinstance(value, Mapping) else value
        return [_beside(text, folder) for text in given] if isinstance(given, list) else _beside(given, folder)
    if isinstance(value, str) and name == "board" and value.endswith(".json"):
        return os.path.join(folder, value)
    return value
