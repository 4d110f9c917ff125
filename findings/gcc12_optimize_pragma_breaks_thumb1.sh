#!/usr/bin/env bash
# gcc-arm-none-eabi 15:12.2.rel1-1 (GCC 12.2.1) as Debian 12 ships it (nothing is installed), -Os, Cortex-M0, M0+ and M23 (Thumb-1).
# A static function copies 16 integers of x, from an index on that it reads through a pointer; it is called four times, twice
# with the same x and index, another target and another y.
# Guess: `#pragma GCC optimize("fp-contract=off")` changes nothing in a file without floats.
# Seen: it breaks the file. The function pushes r0, r1 and r2 as room for variables, stores y in the place of r1, and pops all
# three. Without the pragma its callers set r1 for each call. With it, whatever option it names, they count on r1 being as it was
# (-fipa-ra, which is off for Thumb-1, is on again), and the second call reads its index at address 4 * y. With "no-ipa-ra" in
# the pragma they set r1 again.
#   cortex-m23: r1 set 4 times for four calls; with optimize("fp-contract=off") 2 times; with "no-ipa-ra" 4 times
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat > "$place/k.c" <<'END'
static int arena[256];
static int table[2] = {0, 1};
static __attribute__((noinline)) int copy(int *x, int *index, int *to, int y)
{
    for (int i = 0; i < 4; ++i) {
        for (int k = 0; k < 4; ++k) { to[i * 8 + k] = x[y * 4 + index[0] * 32 + i * 8 + k]; }
    }
    return 0;
}
int all(void)
{
    for (int s = 0; s < 2; ++s) { copy(arena, table, arena + 128 + s * 4, s); }
    for (int s = 0; s < 2; ++s) { copy(arena + 64, table + 1, arena + 160 + s * 4, s); }
    return arena[130];
}
END
body() { awk -v name="$1" '$1 ~ "^"name"[.a-z0-9]*:$" {inside = 1} inside {print} /\.size/ {inside = 0}' "$place/k.s"; }
for core in cortex-m0 cortex-m0plus cortex-m23; do
  for pragma in "" '"fp-contract=off"' '"fp-contract=off", "no-ipa-ra"'; do
    { [ -z "$pragma" ] || echo "#pragma GCC optimize($pragma)"; cat "$place/k.c"; } > "$place/p.c"
    arm-none-eabi-gcc -mthumb -mcpu=$core -Os -S "$place/p.c" -o "$place/k.s"
    popped=$(body copy | grep -cE 'pop[[:space:]]*{r0, r1, r2' || true)
    stored=$(body copy | grep -cE 'str[[:space:]]+r[0-9], \[sp, #4\]' || true)
    set=$(body all | grep -cE '(ldr|mov|movs|adds)[[:space:]]+r1, ' || true)
    echo "$core, optimize(${pragma:-no pragma}): the place of r1 is stored to $stored time, r1 popped $popped time, set $set times for four calls"
    [ "$popped" = 1 ] && [ "$stored" = 1 ]
    if [ "$pragma" = '"fp-contract=off"' ]; then [ "$set" -lt 4 ]; else [ "$set" = 4 ]; fi
  done
done
