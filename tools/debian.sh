#!/bin/sh
# Install cross compilers and emulators from Debian's packages, if they are missing and we may.
# Without them everything still runs on the host, and `tvm-cascade doctor` says what is missing.
set -u
need="$*"
command -v arm-none-eabi-gcc >/dev/null 2>&1 || need="$need gcc-arm-none-eabi libnewlib-arm-none-eabi"
command -v qemu-system-arm >/dev/null 2>&1 || need="$need qemu-system-arm"
command -v gcc >/dev/null 2>&1 || need="$need gcc libc6-dev"
command -v cmake >/dev/null 2>&1 || need="$need cmake"
command -v riscv64-unknown-elf-gcc >/dev/null 2>&1 || need="$need gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf"
command -v qemu-system-riscv32 >/dev/null 2>&1 || need="$need qemu-system-misc"
command -v clang >/dev/null 2>&1 || need="$need clang libclang-rt-dev"
# its sanitizers are a package of their own, which is only recommended
! command -v clang >/dev/null 2>&1 || [ -e "$(clang -print-file-name=libclang_rt.asan-$(uname -m).a)" ] ||
    need="$need libclang-rt-dev"
[ -z "${need# }" ] && need=""
# not every release has it, and with one package missing apt-get installs none of its list
extra=""
command -v arduino-builder >/dev/null 2>&1 || extra="arduino-builder"
all="$need${need:+${extra:+ }}$extra"
[ -z "$all" ] && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "missing: $all (no apt-get here; see 'tvm-cascade doctor')" >&2
    exit 0
fi
run=""
[ "$(id -u)" = 0 ] || { command -v sudo >/dev/null 2>&1 && run="sudo -n"; }
if [ "$(id -u)" != 0 ] && [ -z "$run" ]; then
    echo "missing: $all (install them as root: apt-get install $all)" >&2
    exit 0
fi
echo "installing $all" >&2
$run apt-get update -q >/dev/null 2>&1
for list in "$need" "$extra"; do
    [ -z "$list" ] && continue
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive $run apt-get install -y -q $list >/dev/null 2>&1 ||
        echo "could not install $list (apt-get install $list)" >&2
done
exit 0
