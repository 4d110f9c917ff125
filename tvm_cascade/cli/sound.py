"""The command for writing an audio front end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvm_cascade.cli.guard import guarded, show
from tvm_cascade.cli.json_option import prints
from tvm_cascade.cli.options import NEW_FOLDER, option
from tvm_cascade.cli.teaching import command
from tvm_cascade.request import FrontEndRequest
from tvm_cascade.schema.projects import FrontEnd

_OPTIONS = {
    "name": "Name of the C files; their symbols begin with it.",
    "sample_rate": "Samples of the sound in a second.",
    "window_ms": "Milliseconds of sound that a row of features looks at.",
    "step_ms": "Milliseconds from one row to the next.",
    "channels": "Features of a row.",
    "low_hz": "Frequency at which the first filter begins.",
    "high_hz": "Frequency at which the last filter ends.",
    "smoothing_bits": "Additional bits of the noise estimate.",
    "even_smoothing": "Share of a row that the noise estimate of even channels takes in.",
    "odd_smoothing": "The same of odd channels.",
    "least_signal": "Share of a channel that is left at least when its noise is taken off.",
    "gain_strength": "Channels are divided by their noise to this power.",
    "gain_offset": "What is added to the noise before that.",
    "gain_bits": "Fraction bits of the gain.",
    "log_shift": "Fraction bits of the logarithms.",
    "span": "Features from 0 to N become -128 to 127.",
}


def _options(command: Any) -> Any:
    for name, text in reversed(_OPTIONS.items()):
        command = option(FrontEndRequest, name, text)(command)
    command = option(FrontEndRequest, "log", "Take logarithms of the channels, or not.", "--log/--no-log")(command)
    return option(FrontEndRequest, "gain", "Divide channels by their noise (PCAN), or not.", "--gain/--no-gain")(
        command
    )


@command("front-end")
@_options
@NEW_FOLDER
@prints(FrontEnd)
@guarded
def front_end(output: Path, as_json: bool, **options: Any) -> None:
    """Write an audio front end as C: int16 sound in, rows of log-mel features out, all in integers.

    The arithmetic equals TensorFlow Lite Micro's front end bit for bit; the defaults are micro_speech's.
    """
    from tvm_cascade.emit.front_end import write_front_end

    made = write_front_end(FrontEndRequest.of(options), output)
    sizes = {key: getattr(made, key) for key in ("ram_bytes", "table_bytes", "step_samples", "first_row")}
    files = sorted(made.texts)
    text = f"{output}: {' and '.join(files)}, {made.ram_bytes} bytes of RAM and {made.table_bytes} of tables"
    show(as_json, {"name": options["name"], "output": str(output), "files": files, **sizes}, text)
