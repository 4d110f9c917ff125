#!/usr/bin/env bash
# apache-tvm 0.27.0.post1 (apache-tvm-ffi 0.1.14.post1): a product, a sum and a rounding to an integer in a PrimFunc, compiled for
# Cortex-M7, Cortex-M55 and AArch64 by the target "llvm".
# Guess: product and sum are rounded apart, as LLVM does without fast-math flags; fast-math-contract asks for fused ones.
# Seen: they are fused into one instruction always, also where the target says "fast-math-contract": false. TVM's lowering writes
# llvm.fmuladd, and its LLVM target machines fuse as they like; no attribute turns that off. A fence around the product keeps
# both roundings.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1 numpy
"$place/venv/bin/python" - <<'END'
import re

import tvm
from tvm import te, tirx

TARGETS = {
    "cortex-m7": {"mtriple": "thumbv7em-none-unknown-eabihf"},
    "cortex-m55": {"mtriple": "thumbv8.1m.main-none-unknown-eabihf"},
    "generic": {"mtriple": "aarch64-none-linux-gnu"},
}


def fused(target, fenced):
    a, b, c = (te.placeholder((1,), "float32", name) for name in "abc")

    def element(i):
        product = a[i] * b[i]
        product = tirx.call_llvm_pure_intrin("float32", "llvm.arithmetic.fence", product) if fenced else product
        return tirx.round(product + c[i]).astype("int32")

    func = te.create_prim_func([a, b, c, te.compute((1,), element, "y")]).with_attr("global_symbol", "f")
    text = tvm.compile(func, target=tvm.target.Target(target)).mod.inspect_source("asm")
    return bool(re.search(r"\b(vfma|vmla|fmadd|fmla)", text))


for mcpu, named in TARGETS.items():
    target = {"kind": "llvm", "mcpu": mcpu, "fast-math-contract": False, **named}
    found = fused(target, False), fused(target, True)
    print(mcpu, "fused:", found[0], "with a fence:", found[1])
    assert found == (True, False)
END
