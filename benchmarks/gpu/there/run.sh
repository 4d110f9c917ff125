#!/bin/sh
# Everything on a GPU in one command; there/main.py says how. The folder may lie anywhere, and needs no network.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
exec "${PYTHON:-python3}" -B "$here/there/main.py" "$@"
