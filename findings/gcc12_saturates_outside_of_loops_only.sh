#!/usr/bin/env bash
# gcc-arm-none-eabi 15:12.2.rel1-1 (GCC 12.2.1) and clang 14.0.6, both as Debian 12 ships them (nothing is installed).
# One clamp to int8, v > 127 ? 127 : v < -128 ? -128 : v, in a function by itself and in a loop over an array, for Cortex-M4.
# Guess: SSAT #8 for both, at -O2 and -Os: one instruction where a comparison chain has six.
# Seen: GCC makes SSAT of the clamp by itself, and none in the loop (the bound goes into a register outside of the loop, and
# then the pattern is no longer there), at -O2, -Os and -O3. clang makes it in both.
#   -O3 one: ssat by GCC yes, by clang yes;  -O3 loop: ssat by GCC no, by clang yes
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/one.c" <<'END'
signed char one(int v) { return v > 127 ? 127 : v < -128 ? -128 : v; }
END
cat > "$place/loop.c" <<'END'
void loop(signed char *y, const int *x, int n) { for (int k = 0; k < n; k++) y[k] = x[k] > 127 ? 127 : x[k] < -128 ? -128 : x[k]; }
END
saturates() { grep -q ssat && echo yes || echo no; }
for level in -O2 -Os -O3; do
  for file in one loop; do
    gcc=$(arm-none-eabi-gcc -mthumb -mcpu=cortex-m4 $level -S "$place/$file.c" -o - | saturates)
    clang=$(clang --target=thumbv7em-none-eabi -mcpu=cortex-m4 $level -S "$place/$file.c" -o - | saturates)
    echo "$level $file: ssat by GCC $gcc, by clang $clang"
    [ "$clang" = yes ]
    [ "$gcc" = "$([ $file = one ] && echo yes || echo no)" ]
  done
done
