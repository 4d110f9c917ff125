"""The command line. Results go to standard output, progress and messages to standard error.

Exit status: 0 done; 1 infeasible or mismatch; 2 bad usage or unreadable input; 130 interrupted; 143 terminated.
"""

import _thread
import atexit
import gc
import sys
import time


def main(arguments: list[str] | None = None) -> None:
    """Run the command line, by default on the arguments of this process; does not return.

    Other imports come inside the `try`, so Ctrl-C during an import ends without a traceback.
    """
    sys.unraisablehook = _interrupt_again
    gc.set_threshold(500_000, 20, 100)  # next to nothing of what a command makes is a cycle: a tenth of its time else
    atexit.register(gc.freeze)  # nor is a last search for cycles worth a fifth of a second as the process ends
    try:
        from tvm_cascade.late_methods import make_methods_late

        make_methods_late()
        from tvm_cascade.tvm_import import install

        install(sys.argv[1:] if arguments is None else arguments)
        from tvm_cascade.cli.group import tvm_cascade
        from tvm_cascade.torch_import import deferred

        with deferred():
            tvm_cascade(arguments, prog_name="tvm-cascade")
    except KeyboardInterrupt:
        print("tvm-cascade: interrupted", file=sys.stderr)
        sys.exit(130)


def _interrupt_again(lost: "sys.UnraisableHookArgs") -> None:
    """Send the interrupt again after a Ctrl-C inside a callback: an unraisable hook, since Python would print and
    ignore the exception.
    """
    if issubclass(lost.exc_type, KeyboardInterrupt):
        _thread.start_new_thread(_soon, ())
    else:
        sys.__unraisablehook__(lost)


def _soon() -> None:
    time.sleep(0.01)
    _thread.interrupt_main()
