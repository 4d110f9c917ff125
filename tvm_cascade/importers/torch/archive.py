"""Read torch.export archives without executing their contents.

`torch.export.load` unpickles objects of any class, loads compiled code, evaluates size texts and calls named functions.
So torch gets a rewritten archive: only a program's members, weights unpickled as tensors alone, and a program with
names, operators and sizes in torch.export's own forms. Anything else is refused by name.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm_cascade.importers.torch.package import quietly, torch_package, torchao_package
from tvm_cascade.messages import last_line, printable

MOST_BYTES = 1 << 30  # of an archive's members together

_LATER = re.compile(  # members of programs since torch 2.8, in a folder of the archive's name
    r"archive_format|archive_version|byteorder|\.data/[\w.]+|models/model\.json|data/sample_inputs/model\.pt"
    r"|data/weights/(model_weights_config\.json|weight_\d+|model\.pt)"
    r"|data/constants/(model_constants_config\.json|tensor_\d+|model\.pt)"
)
_EARLIER = re.compile(
    r"version|byteorder|\.data/[\w.]+|serialized_(exported_program\.json|(state_dict|constants|example_inputs)\.(pt|json))"
)
_UNREAD = re.compile(r"extra(_files)?/.*|.*/")  # texts of the user's own, which nothing here asks for, and folders
_PROGRAMS = ("models/model.json", "serialized_exported_program.json")
_SAMPLES = ("data/sample_inputs/model.pt", "serialized_example_inputs.pt")  # pickles that nothing here asks for
_KINDS = {
    "data/aotinductor/": "compiled code",
    "data/constants/custom_obj_": "a pickled object",
    "data/constants/opaque_obj_": "a pickled object",
}

_SPACES = ("aten", "prims", "quantized_decomposed", "torchao", "quantized")
_OPERATOR = re.compile(rf"torch\.ops\.({'|'.join(_SPACES)})\.(?!from_file\b)\w+(\.\w+)?")
_HIGHER = re.compile(r"torch\.ops\.higher_order\.(cond|while_loop|map_impl|scan|wrap_with_\w+)")
_OF_SIZES = re.compile(
    r"_operator\.(add|sub|mul|truediv|floordiv|mod|neg|pos|abs|pow|eq|ne|lt|le|gt|ge|and_|or_|not_|xor|lshift|rshift|getitem)"
    r"|math\.\w+|torch\.(_?sym_\w+)"
)
_UNWRAP = "give the module to torchao.utils.unwrap_tensor_subclass before it is exported"
_NAME = re.compile(r"\w*")
_QUALIFIED = re.compile(r"[^\"'\\{}\x00-\x1f]*")
_IDENTIFIERS = ("name", "as_name", "forward_arg_names", "user_input_name")
_QUALIFIED_KEYS = ("fqn", "parameter_name", "buffer_name", "tensor_constant_name", "buffer_to_mutate")
_FUNCTION = re.compile(
    r"Max|Min|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv|ModularIndexing|IntTrueDiv|FloatTrueDiv|PowByNatural|FloatPow|ToFloat"
    r"|(Trunc|Floor|Ceil|Round)ToInt|TruncToFloat|RoundDecimal|Where|Identity|Eq|Ne|Gt|Ge|Lt|Le|And|Or|Not|Abs|floor|ceiling|sqrt"
    r"|Symbol|Integer|Float|Rational|Add|Mul|Pow|BitwiseFn_bitwise_(and|or)|IsNonOverlappingAndDenseIndicator"
)
_SIZES = (
    *(
        ast.Expression,
        ast.BinOp,
        ast.UnaryOp,
        ast.BoolOp,
        ast.Compare,
        ast.Call,
        ast.Name,
        ast.Load,
        ast.Constant,
        ast.keyword,
    ),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_LOCK = threading.Lock()


class RefusedArchive(ValueError):
    """An archive with contents that could execute code, or not written by torch.export."""


def open_program(data: bytes) -> Any:
    """Return the program in a torch.export archive.

    Raises `MissingToolError` without torch, or without torchao for its operators; `RefusedArchive` for contents that
    torch.export does not write or that could execute code; for damaged files torch raises many error types.
    """
    torch = torch_package()
    members = _members(data)
    for name in (*_PROGRAMS, "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"):
        if name in members:
            members[name] = json.dumps(_checked(json.loads(members[name]))).encode()
    for name in _SAMPLES:
        if name in members:
            members[name] = b""
    if any(b'"torch.ops.torchao.' in members.get(name, b"") for name in _PROGRAMS):
        torchao_package()  # registers its operators
    with quietly(), _tensors_alone():
        try:
            return torch.export.load(io.BytesIO(_archive(members)))
        except Exception as error:
            if "weights_only" in str(error) or "Weights only" in str(error):
                text = last_line(error).split("Please", 1)[0]
                raise RefusedArchive(f"weights that are pickled objects, not tensors alone: {text}") from error
            raise


def _members(data: bytes) -> dict[str, bytes]:
    """Return a program's members, by name."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
        unpacked = sum(member.file_size for member in infos)
        if unpacked > MOST_BYTES:
            raise RefusedArchive(f"holds {unpacked} bytes when unpacked, more than {MOST_BYTES}")
        names = [info.filename for info in infos]
        earlier = "serialized_exported_program.json" in names
        known = _EARLIER if earlier else _LATER
        found: dict[str, bytes] = {}
        for info in infos:
            name = info.filename if earlier else info.filename.partition("/")[2]
            if _UNREAD.fullmatch(name):
                continue
            if not known.fullmatch(name):
                kind = next((k for prefix, k in _KINDS.items() if name.startswith(prefix)), "")
                what = f"holds {printable(info.filename)}" + (f", {kind}" if kind else "")
                raise RefusedArchive(
                    f"{what}: only programs and their tensors are read, as torch.export.save writes them"
                )
            if name in found:
                raise RefusedArchive(f"holds {printable(info.filename)} twice")
            found[name] = archive.read(info)
    if not any(name in found for name in _PROGRAMS):
        raise RefusedArchive("not an archive of torch.export: it holds no program")
    return found


def _archive(members: dict[str, bytes]) -> bytes:
    """Write an archive with `members` for torch."""
    made = io.BytesIO()
    folder = "" if _PROGRAMS[1] in members else "model/"
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{folder}{name}", content)
    return made.getvalue()


@contextmanager
def _tensors_alone() -> Iterator[None]:
    """Make `torch.load` unpickle tensors alone, by its environment variable, against its callers in torch."""
    force, never = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
    with _LOCK:
        before = {name: os.environ.pop(name, None) for name in (force, never)}
        os.environ[force] = "1"
        try:
            yield
        finally:
            del os.environ[force]
            os.environ.update({name: value for name, value in before.items() if value is not None})


def _checked(program: Any) -> Any:
    """Return a program's JSON without guard code; raises `RefusedArchive` for forms unknown to torch.export."""
    if "guards_code" in program:
        program["guards_code"] = []
    for key, value in _pairs(program):
        if key == "expr_str" and not _is_size(value):
            raise RefusedArchive(f"a size is no expression: {printable(str(value))}")
        if key in ("target", "as_operator") and isinstance(value, str) and not _is_operator(value):
            remedy = f": {_UNWRAP}" if value.startswith("torch.ops.export.access_subclass") else ""
            raise RefusedArchive(
                f"operator {printable(value)} is none of those that programs of torch.export consist of{remedy}"
            )
        if key in _IDENTIFIERS and isinstance(value, str) and not _NAME.fullmatch(value):
            raise RefusedArchive(f"{printable(value)} is no name")
        if key in _QUALIFIED_KEYS and isinstance(value, str) and not _QUALIFIED.fullmatch(value):
            raise RefusedArchive(f"{printable(value)} is no name")
        if key == "as_custom_obj" and value is not None:
            raise RefusedArchive("takes an object that is no tensor")
        if key in ("in_spec", "out_spec") and isinstance(value, str):
            _check_tree(value)
        if key in ("range_constraints", "config") and isinstance(value, dict):
            bad = [k for k in value if not (_QUALIFIED.fullmatch(k) if key == "config" else _is_size(k))]
            if bad:
                raise RefusedArchive(f"{printable(bad[0])} is no name")
    return program


def _pairs(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values in a JSON value, each with its key or its list's key."""
    yield key, value
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _pairs(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _pairs(inner, key)


def _is_operator(name: str) -> bool:
    return any(form.fullmatch(name) for form in (_OPERATOR, _HIGHER, _OF_SIZES))


def _is_size(text: Any) -> bool:
    """Return True if a text is an expression of sizes and numbers that evaluates without any other call."""
    try:
        nodes = list(ast.walk(ast.parse(str(text).strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(isinstance(n, _SIZES) and _is_harmless(n) for n in nodes)


def _is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and _FUNCTION.fullmatch(node.func.id) is not None
    if isinstance(node, ast.Constant):  # texts are names of symbols and digits
        return isinstance(node.value, (int, float)) or (
            isinstance(node.value, str) and re.fullmatch(r"[\w.+-]*", node.value) is not None
        )
    return True


def _check_tree(text: str) -> None:
    """Raise `RefusedArchive` if the form of a program's arguments names classes to import, or has malformed names."""
    for key, value in _pairs(json.loads(text)):
        if isinstance(value, dict) and (
            "__enum__" in value or value.get("default_factory_module", "builtins") != "builtins"
        ):
            raise RefusedArchive("its arguments are of classes of Python, not tensors, tuples, lists and dicts of them")
        if key == "context" and isinstance(value, str):
            if value[:1] in '[{"':
                _check_tree(value)
            elif not re.fullmatch(r"[\w.]*", value):
                raise RefusedArchive(f"{printable(value)} is no name")
        elif not key and isinstance(value, str) and not re.fullmatch(r"[\w.\- ]*", value):
            raise RefusedArchive(f"{printable(value)} is no name")
