#!/usr/bin/env bash
# clang 14.0.6 and gcc-arm-none-eabi 15:12.2.rel1-1 (GCC 12.2.1), both as Debian 12 ships them (nothing is installed).
# float a * b + c at -O2, for four cores whose floating-point unit has VFMA.
# Guess: one VFMA by both compilers on all four: both contract by default (clang since release 14).
# Seen: GCC does. clang writes VMUL and VADD for Cortex-M4 and Cortex-M33, where it holds VFMA to be slow, and VFMA for
# Cortex-M7 and Cortex-M55. The first rounds twice: one source has other floats on an M4 than on an M7, and than GCC's.
#   cortex-m4 yes no; cortex-m33 yes no; cortex-m7 yes yes; cortex-m55 yes yes (VFMA by GCC, by clang)
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
echo 'float f(float a, float b, float c) { return a * b + c; }' > "$place/f.c"
fuses() { grep -q vfma && echo yes || echo no; }
for core in cortex-m4 cortex-m33 cortex-m7 cortex-m55; do
  unit=$([ $core = cortex-m4 ] && echo -mfpu=fpv4-sp-d16 || echo -mfpu=auto)
  gcc=$(arm-none-eabi-gcc -mthumb -mcpu=$core $unit -mfloat-abi=hard -O2 -S "$place/f.c" -o - | fuses)
  clang=$(clang --target=thumbv7em-none-eabihf -mcpu=$core -O2 -S "$place/f.c" -o - | fuses)
  echo "$core: vfma by GCC $gcc, by clang $clang"
  [ "$gcc" = yes ]
  case $core in cortex-m4 | cortex-m33) [ "$clang" = no ] ;; *) [ "$clang" = yes ] ;; esac
done
