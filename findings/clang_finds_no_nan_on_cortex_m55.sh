#!/usr/bin/env bash
# clang 14.0.6 (Debian 12), --target=thumbv8.1m.main-none-eabi -mcpu=cortex-m55 -O2, a loop that stores `x[i] != x[i]`.
# Guess: 1 where x[i] is NaN, as for every other core; vectors of Helium compare an element with itself (VCMP ne), or nothing is
# vectorized, since -ffast-math is not given.
# Seen: the loop is vectorized, and NaN is told by `x >= 0` and then, where that holds, `x < 0`, which is never true: the four
# elements of a vector are 0 whatever they hold. The elements behind the last whole vector are compared with themselves, and
# right. So isnan of an array depends on its length: NaN is found in element 4 of 5, and in none of elements 0 to 3.
# What is meant is `not x < 0 and not x >= 0`; comparisons are turned around as if of integers.
# (LLVM 22, in apache-tvm 0.27, writes the same.) For cortex-m7 every element is compared with itself.
#   cortex-m55: vpt.f32 ge, vcmpt.f32 lt;  cortex-m7: vcmp.f32 of a register with itself
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
echo 'void nans(const float *restrict x, int *restrict y, int n) { for (int i = 0; i < n; i++) y[i] = x[i] != x[i]; }' > "$place/n.c"
clang --version | grep -q 'version 14\.'
text() { clang "--target=$1" "-mcpu=$2" -mfloat-abi=hard -O2 -S -o - "$place/n.c"; }
text thumbv8.1m.main-none-eabi cortex-m55 > "$place/m55.s"
text thumbv7em-none-eabi cortex-m7 > "$place/m7.s"
grep -q 'vpt\.f32[[:space:]]ge, q[0-9], zr' "$place/m55.s"
grep -A 1 'vpt\.f32[[:space:]]ge, q[0-9], zr' "$place/m55.s" | grep -q 'vcmpt\.f32[[:space:]]lt, q[0-9], zr'
grep -q 'vcmp\.f32[[:space:]]\(s[0-9]*\), \1$' "$place/m7.s"
! grep -q vpt "$place/m7.s"
grep 'vpt\|vcmp' "$place/m55.s"
