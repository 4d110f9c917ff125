"""Export a compiled folder as a package for another build system, such as a Zephyr module or an Arduino library.

A package holds the networks (headers, sources, weights, compiled kernels if any) and an example for calling the
networks. The kinds are modules in `micro.packages`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tvm_cascade.emit.golden import Golden, has_classes
from tvm_cascade.emit.hearing import read_hearing
from tvm_cascade.emit.image import Image, read_image
from tvm_cascade.emit.names import c_identifier
from tvm_cascade.emit.package import Package, common_values, write_file
from tvm_cascade.emit.packages import KINDS, package_kind
from tvm_cascade.emit.template import fill_template, template_folder
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.plain_files import readable
from tvm_cascade.publish import publish, require_empty


def export_folder(
    folder: Path,
    kind: str,
    out: Path,
    front_end: Path | None = None,
    golden: Mapping[str, Golden] | None = None,
    labels: Sequence[str] = (),
) -> tuple[str, ...]:
    """Write the compiled `folder` as a package of `kind` into the new folder `out`; returns the files, relative to it.

    Parameters
    ----------
    kind : str
        One of `packages.KINDS`.
    front_end : Path, optional
        A folder that `front-end` wrote: its C goes with the network's, and the example from sound to outputs.
    golden : mapping of str to Golden, optional
        An input and its outputs by network, for the example's self-test.
    labels : sequence of str
        Names of the classes of the only network.

    Raises
    ------
    LoadError
        A file of the compiled folder is missing, or its metadata is damaged.
    UsageError
        `kind` is unknown, or `out` exists and is not empty; kernels are compiled for cores that the kind does not serve;
        the network lies in several memories, which the kind does not place; the name of `out` is none that the kind allows;
        there is no front end in `front_end`, or none for the only network.
    MissingToolError
        Compiled kernels have to be packed and the target's binutils are missing.
    """
    if kind not in KINDS:
        raise UsageError(f"unknown kind of package {kind!r}; known: {', '.join(KINDS)}")
    image = read_image(folder)
    for name in (name for network in image.networks for name in network.files):
        if not (folder / name).is_file():
            raise LoadError(folder / name, "is missing; compile again")
    # named after its network, or after its folder where there are several
    writer = package_kind(kind)
    hearing = None if front_end is None else read_hearing(front_end, writer.microphone)
    if hearing is not None and image.several:
        raise UsageError(f"--front-end is for one network, and {folder} holds several")
    if hearing is not None and image.networks[0].interface.weights is not None:
        raise UsageError(f"--front-end is for linked weights: compile {image.name} without --weights")
    name = c_identifier(folder.resolve().name, image.name) if image.several else image.name
    package = Package(name, image, hearing, golden or {}, _labels(image, labels))
    writer.refuse(package, out)
    with publish(out, require_empty) as staging:
        values = common_values(package) | writer.write(package, staging)
        for place, text in template_folder(writer.templates).items():
            write_file(staging / place.replace("NAME", package.name), fill_template(text, values))
        for stored in (network.interface.weights for network in package.networks):
            if stored is not None and stored.in_file:
                shutil.copyfile(image.folder / stored.file, staging / stored.file)
        writer.finish(package, staging)
        return tuple(sorted(path.relative_to(staging).as_posix() for path in staging.rglob("*") if path.is_file()))


def _labels(image: Image, labels: Sequence[str]) -> tuple[str, ...]:
    """Check names of classes: one for each score. Raises `UsageError`."""
    if not labels:
        return ()
    if image.several or not has_classes(image.networks[0]):
        raise UsageError(f"--labels names the classes of one network's scores, and {image.folder} has no such output")
    scores = max(image.networks[0].outputs[0].shape)
    if len(labels) != scores:
        raise UsageError(f"--labels has {len(labels)} names, and {image.name} has {scores} scores")
    return tuple(labels)


def read_labels(path: Path | None) -> tuple[str, ...]:
    """Read names of classes, one a line. Raises `LoadError`."""
    if path is None:
        return ()
    try:
        return tuple(line.strip() for line in readable(path).read_text(encoding="utf-8").splitlines() if line.strip())
    except OSError as error:
        raise LoadError(path, error.strerror or "cannot be read") from None
    except UnicodeDecodeError:
        raise LoadError(path, "is no text in UTF-8") from None
