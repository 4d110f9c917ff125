#!/usr/bin/env bash
# gcc-arm-none-eabi 15:12.2.rel1-1 (GCC 12.2.1) and clang 14.0.6, both as Debian 12 ships them (nothing is installed).
# kernel(w, out) reads w[2 * c + 1] and ((char *)w)[4 * c + 36] and stores to out[c], four times; called twice, with addresses
# inside of two arrays, for Cortex-M4 and M7.
# Guess: both calls stay, at every level: their stores go to an array that other files may read.
# Seen: GCC removes both calls at -O1 and -O2, and says nothing. Its induction variables turn w[2 * c + 1] into an access
# whose base is the constant 0 (MEM[(int *)0B + x + y * 2]); the next analysis takes that for an access of a null pointer, all
# that follows for unreachable, and the function for pure. With -fno-delete-null-pointer-checks the calls stay; so they do at
# -Os, and with clang.
#   cortex-m7 -O2: calls by GCC 0, without inference from null pointers 2, by clang 2
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/k.c" <<'END'
int base[64];
signed char arena[256];
__attribute__((noinline)) static void kernel(const int *w, signed char *out)
{
    for (int c = 0; c < 4; ++c) { out[c] = (signed char)(w[c * 2 + 1] + ((const signed char *)w)[c * 4 + 36]); }
}
void invoke(void) { kernel(base, arena); kernel(base + 8, arena + 8); }
END
calls() { grep -cE '[[:space:]]b[l]?[[:space:]]+kernel' || true; }
for core in cortex-m4 cortex-m7; do
  for level in -O1 -O2 -Os; do
    gcc=$(arm-none-eabi-gcc -mthumb -mcpu=$core $level -S "$place/k.c" -o - | calls)
    with=$(arm-none-eabi-gcc -mthumb -mcpu=$core $level -fno-delete-null-pointer-checks -S "$place/k.c" -o - | calls)
    clang=$(clang --target=thumbv7em-none-eabi -mcpu=$core $level -S "$place/k.c" -o - | calls)
    echo "$core $level: calls by GCC $gcc, without inference from null pointers $with, by clang $clang"
    [ "$gcc" = "$([ $level = -Os ] && echo 2 || echo 0)" ]
    [ "$with" = 2 ]
    [ "$clang" = 2 ]
  done
done
