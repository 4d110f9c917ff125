"""The directive `terminal`: commands, run while the site is built, and what they print.

    ```{terminal}
    :lines: 12
    tvm-cascade plan shapes.tflite
    ```

The commands of a page run one after the other in a folder of the page's own, which has the files of `samples`. `status` is the
exit status that the last one must have, 0 by default: another one is a warning, which ends the build. `lines` shows only so many
lines of the output of each. What goes to standard error is shown where a command fails.
`silent` shows nothing: it prepares what later commands of the page need.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from click.testing import CliRunner
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from cascade_site.repository import ROOT
from cascade_site.samples import write_samples

WIDTH = 100  # columns of the terminal


class Terminal(SphinxDirective):
    """The commands of the content, and what they print."""

    has_content = True
    option_spec: ClassVar = {
        "status": directives.nonnegative_int,
        "lines": directives.positive_int,
        "silent": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        folder = folder_of(Path(self.env.app.outdir), self.env.docname)
        if not folder.is_dir():
            folder.mkdir(parents=True)
            write_samples(folder)
        shown, status = [], 0
        for command in self.content:
            status, out, errors = run(command, folder)
            text = _shortened(out if status == 0 else out + errors, self.options.get("lines"))
            shown.append(f"$ {command}\n{_without_places(text, folder)}".rstrip())
        wanted = self.options.get("status", 0)
        if status != wanted:
            warning = f"{self.content[-1]!r} ended with {status}, not with {wanted}: {shown[-1][-600:]}"
            return [self.state.document.reporter.warning(warning, line=self.lineno)]
        places = [line for line in "\n".join(shown).splitlines() if re.search(r"/(tmp|home|root)/", line)]
        if places:
            warning = f"the output names a place of this machine: {places[0]}"
            return [self.state.document.reporter.warning(warning, line=self.lineno)]
        return [] if "silent" in self.options else [console("\n".join(shown))]


def console(text: str) -> nodes.literal_block:
    """A block of a terminal's text."""
    block = nodes.literal_block(text, text)
    block["language"], block["force"] = "console", True
    return block


def folder_of(out: Path, page: str) -> Path:
    """The folder in which the commands of a page run."""
    return out.parent / "terminal" / page.replace("/", "-")


def run(command: str, folder: Path) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of one command line in `folder`."""
    words = shlex.split(command)
    with _settings(folder):
        if words[0] == "tvm-cascade":
            from tvm_cascade.cli.group import tvm_cascade

            ended = CliRunner().invoke(tvm_cascade, words[1:], prog_name="tvm-cascade", terminal_width=WIDTH)
            return ended.exit_code, ended.stdout, ended.stderr
        done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@contextmanager
def _settings(folder: Path) -> Iterator[None]:
    """The folder, and a cache of its own: what is shown is compiled, not taken from what somebody compiled before."""
    before, cache = Path.cwd(), os.environ.get("TVM_CASCADE_CACHE_DIR")
    os.chdir(folder)
    os.environ["TVM_CASCADE_CACHE_DIR"] = str(folder / ".cache")
    try:
        yield
    finally:
        os.chdir(before)
        if cache is None:
            del os.environ["TVM_CASCADE_CACHE_DIR"]
        else:
            os.environ["TVM_CASCADE_CACHE_DIR"] = cache


def _shortened(text: str, lines: int | None) -> str:
    whole = text.splitlines()
    return "\n".join(whole if lines is None or len(whole) <= lines else [*whole[:lines], "..."])


def _without_places(text: str, folder: Path) -> str:
    for place, name in ((f"{folder}/", ""), (str(folder), "."), (str(ROOT), "."), (str(Path.home()), "~")):
        text = text.replace(place, name)
    return text


def _without_folder(app: Sphinx, page: str, _source: list[str]) -> None:
    """What an earlier build of the page left is removed before it is read again."""
    shutil.rmtree(folder_of(Path(app.outdir), page), ignore_errors=True)


def setup(app: Sphinx) -> None:
    app.add_directive("terminal", Terminal)
    app.connect("source-read", _without_folder)
