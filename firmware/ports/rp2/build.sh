#!/usr/bin/env bash
# The firmware of a Raspberry Pi Pico with the C core and our modules, after set-up: build/rp2/firmware.{uf2,bin,elf}.
# Everything comes from Debian's sources; the port is MicroPython's own.
set -euo pipefail
cd "$(dirname "$0")/../../.."
root=$PWD
here=$root/firmware/ports/rp2
out=$root/build/rp2
cpus=$(nproc)
mkdir -p "$out"
[ -w "${HOME:-/nonexistent}" ] || export HOME=$out
say() { printf '  %s\n' "$*"; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
packages=()
command -v cmake >/dev/null || packages+=(cmake)
[ -e /usr/lib/arm-none-eabi/newlib/libstdc++.a ] || packages+=(libstdc++-arm-none-eabi-newlib)
if [ ${#packages[@]} != 0 ]; then
    say "Debian packages: ${packages[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${packages[@]}" >"$out/packages.log"
fi

# pico-sdk, TinyUSB and mbed TLS, which Debian takes out of MicroPython's source.
fetch() {
    local mirror apt
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(LABEL) $(COMPONENT)' 'Created-By: Packages' | awk '$2 == "Debian" && $3 == "main" {print $1; exit}')
    mkdir -p "$out/apt/lists/partial" "$out/apt/cache/archives/partial" "$out/sources"
    printf '%s [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie main\n' deb "$mirror" deb-src "$mirror" >"$out/apt/sources.list"
    apt=(apt-get -o "Dir::Etc::SourceList=$out/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$out/apt/lists"
        -o "Dir::Cache=$out/apt/cache" -o APT::Sandbox::User=root)
    "${apt[@]}" update
    cd "$out/sources"
    "${apt[@]}" source mbedtls
    "${apt[@]}" download pico-sdk-source tinyusb-source
    for package in ./*.deb; do dpkg -x "$package" .; done
}

copy_micropython() {
    rm -rf "$out/micropython"
    cp -a "$root/build/micropython/source/." "$out/micropython"
    cd "$out/micropython"
    rm -rf lib/pico-sdk lib/tinyusb lib/mbedtls
    ln -s "$out/sources/usr/src/pico-sdk" lib/pico-sdk
    ln -s "$out/sources/usr/src/tinyusb" lib/tinyusb
    ln -s "$(echo "$out"/sources/mbedtls-*/)" lib/mbedtls
    touch lib/micropython-lib/README.md # the port only looks whether it is there
}

firmware() {
    export MICROPY_MPYCROSS=$root/build/micropython/mpy-cross/mpy-cross
    cmake -S "$out/micropython/ports/rp2" -B "$out/firmware" -DMICROPY_BOARD=RPI_PICO \
        -DUSER_C_MODULES="$root/firmware/ports/usermod/mqqb/micropython.cmake" -DMICROPY_FROZEN_MANIFEST="$here/manifest.py" \
        -DPICO_NO_PICOTOOL=1
    make -j"$cpus" -C "$out/firmware"
    cp "$out/firmware/firmware.bin" "$out/firmware/firmware.elf" "$out/"
    "$root/.venv/bin/python" "$here/uf2.py" "$out/firmware.bin" "$out/firmware.uf2"
}

step() { # NAME FILE COMMAND: unless FILE is there
    [ -e "$2" ] && return
    say "$1 ..."
    set +e # in a condition the shell would ignore it inside the command
    (set -e; "$3") >"$out/$1.log" 2>&1
    local status=$?
    set -e
    if [ $status -ne 0 ]; then
        tail -n 40 "$out/$1.log" >&2
        exit 1
    fi
}
step sources "$out/sources/usr/src/tinyusb" fetch
step micropython "$out/micropython" copy_micropython
# make knows itself what has changed
step firmware /nonexistent firmware
arm-none-eabi-size "$out/firmware.elf"
