#!/usr/bin/env bash
# Brings what a job needs onto this machine: programs (programs.txt), the virtual environment, MicroPython.
#   setup.sh run | test | bench
# Everything is made under .venv/ and build/. A step is done again only when what it is made from has changed.
# PYTHON= names the interpreter, MICROPYTHON_DIR= a MicroPython checkout (1.25 or newer) to use instead of Debian's source.
set -euo pipefail
job=${1:?run, test or bench}
cd "$(dirname "$0")/../.."
root=$PWD
export PYTHON=${PYTHON:-python3} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_CONSTRAINT=$root/tests/constraints.txt
micropython_version=1.25.0+ds-1
cpus=$(nproc)
if [ -n "${MICROPYTHON_DIR:-}" ] && [ ! -f "$MICROPYTHON_DIR/py/mpconfig.h" ]; then
    echo "set-up: MICROPYTHON_DIR=$MICROPYTHON_DIR is not a MicroPython checkout" >&2
    exit 1
fi
mkdir -p build/stamps build/logs build/micropython
[ -w "${HOME:-/nonexistent}" ] || export HOME=$root/build
exec 9>build/setup.lock
flock 9

say() { printf '  %s\n' "$*"; }
now() { echo "${EPOCHREALTIME/[.,]/}"; }
# digest FILE...: of names and contents; folders are walked
digest() { find "$@" -type f \( -name '*.[ch]' -o -name '*.py' -o -name '*.sh' -o -name '*.mk' -o -name '*.cmake' -o -name '*.txt' -o -name '*.toml' \) \
    -exec sha256sum {} + | sort | sha256sum | cut -d' ' -f1; }
fresh() { [ "$(cat "build/stamps/$1" 2>/dev/null)" = "$2" ]; }

# step NAME KEY COMMAND...: does COMMAND unless it was done for the same KEY; its output goes to a log, shown on failure
step() {
    local name=$1 key=$2 from status
    shift 2
    if fresh "$name" "$key"; then return; fi
    rm -f "build/stamps/$name"
    say "$name ..."
    from=$(now)
    # Not in a condition: there the shell would ignore `set -e` inside COMMAND.
    set +e
    (set -e; "$@") >"build/logs/$name.log" 2>&1 9>&-
    status=$?
    set -e
    if [ $status -ne 0 ]; then
        tail -n 40 "build/logs/$name.log" >&2
        echo "set-up: $name failed; the whole log is build/logs/$name.log" >&2
        exit 1
    fi
    echo "$key" >"build/stamps/$name"
    say "$(printf '%s %d.%d s' "$name" $((($(now) - from) / 1000000)) $((($(now) - from) / 100000 % 10)))"
}

# ---- programs

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
may_install() { command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null || { [ -t 0 ] && command -v sudo >/dev/null; }; }; }

# missing: the lines of programs.txt for this job whose check fails
missing() {
    local jobs=" run " line package check why rest
    [ "$job" = run ] || jobs+="test "
    [ "$job" != bench ] || jobs+="bench "
    [ -n "${MICROPYTHON_DIR:-}" ] || jobs+="micropython "
    while IFS= read -r line; do
        line=${line//\\|/$'\1'}
        IFS='|' read -r rest package check why <<<"$line"
        check=${check//$'\1'/|}
        case $jobs in *" ${rest// /} "*) ;; *) continue ;; esac
        bash -c "$check" >/dev/null 2>&1 </dev/null || echo "${package// /}|$why"
    done < <(grep -v '^#' firmware/ports/programs.txt)
}

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    as_root apt-get update
    as_root apt-get install -y --no-install-recommends "$@"
}

programs() {
    local lines packages
    lines=$(missing)
    [ -n "$lines" ] || return 0
    packages=$(cut -d'|' -f1 <<<"$lines")
    if may_install; then
        say "Debian packages: $(echo $packages)"
        step debian-packages "$lines" install_packages $packages
        rm build/stamps/debian-packages
        lines=$(missing)
        [ -n "$lines" ] || return 0
    fi
    echo "set-up: these are needed and absent (named by their Debian packages), and could not be installed with apt-get:" >&2
    sed 's/^\([^|]*\)| */  \1: /' <<<"$lines" >&2
    "$PYTHON" --version >&2 2>&1 || true
    exit 1
}

# ---- Python

# requirements GROUP...: the lines of pyproject.toml; "run" is the package's own needs and its build tools
requirements() {
    "$PYTHON" - "$@" <<'PYTHON'
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    settings = tomllib.load(file)
groups = dict(settings["project"]["optional-dependencies"])
groups["run"] = settings["project"]["dependencies"] + settings["build-system"]["requires"] + groups["hil"]
print("\n".join(line for group in sys.argv[1:] for line in groups[group]))
PYTHON
}

# An environment that is there and new enough is kept, whoever made it.
create_venv() { .venv/bin/python -c 'import sys; assert sys.version_info >= (3, 11)' || "$PYTHON" -m venv --clear .venv; }

install_requirements() {
    requirements "$1" >"build/requirements-$1.txt"
    .venv/bin/python -m pip install -r "build/requirements-$1.txt"
}

install_ordack() { .venv/bin/python -m pip install --no-deps --no-build-isolation --editable .; }

python_part() {
    local key packages group
    [ -x .venv/bin/python ] || rm -f build/stamps/{venv,python-packages-*,ordack}
    step venv "$root" create_venv
    key="$root $(.venv/bin/python --version) $(sha256sum <tests/constraints.txt)"
    packages=run
    [ "$job" = run ] || packages+=" dev"
    [ "$job" != bench ] || packages+=" bench"
    for group in $packages; do
        step "python-packages-$group" "$key $(requirements "$group")" install_requirements "$group"
    done
    step ordack "$key $(digest pyproject.toml host/build_backend.py host/build_mqqb.py c_core)" install_ordack
}

# ---- MicroPython: build/micropython/source, mpy-cross, unix-c, unix-twin

# Debian's source package, through apt with lists of its own: the machine's apt is left as it is, and its mirror is used.
fetch_source() {
    local apt=$root/build/micropython/apt mirror options
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(LABEL) $(COMPONENT)' 'Created-By: Packages' | awk '$2 == "Debian" && $3 == "main" {print $1; exit}')
    if [ -z "$mirror" ]; then
        echo "apt knows no Debian mirror (run apt-get update, or name a MicroPython checkout with MICROPYTHON_DIR=)"
        return 1
    fi
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" >"$apt/sources.list"
    options=(-o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$apt/lists"
        -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
    cd build/micropython
    rm -rf micropython-*
    apt-get "${options[@]}" update
    apt-get "${options[@]}" source "micropython=$micropython_version" || apt-get "${options[@]}" source micropython
    ln -sfn "$(echo micropython-*/)" source
}

use_checkout() { ln -sfn "$(realpath "$MICROPYTHON_DIR")" build/micropython/source; }

build_mpy_cross() {
    rm -rf build/micropython/mpy-cross
    make -j"$cpus" -C build/micropython/source/mpy-cross BUILD="$root/build/micropython/mpy-cross"
}

# build_unix NAME KEY [SETTING...]: KEY stands for what an existing build folder cannot follow (settings, MicroPython itself)
build_unix() {
    local folder=$root/build/micropython/$1 key=$2
    shift 2
    if [ "$(cat "$folder/made-for" 2>/dev/null)" != "$key" ]; then
        rm -rf "$folder"
        mkdir -p "$folder"
        echo "$key" >"$folder/made-for"
    fi
    # Nothing that would need another library: no TLS, no ffi, no btree.
    make -j"$cpus" -C build/micropython/source/ports/unix BUILD="$folder" MICROPY_MPYCROSS="$root/build/micropython/mpy-cross/mpy-cross" \
        FROZEN_MANIFEST="$root/firmware/ports/unix/manifest.py" \
        MICROPY_PY_BTREE=0 MICROPY_PY_SSL=0 MICROPY_SSL_MBEDTLS=0 MICROPY_PY_FFI=0 MICROPY_PY_BLUETOOTH=0 "$@"
}

micropython_part() {
    local source
    if [ -n "${MICROPYTHON_DIR:-}" ]; then
        source="$root $(realpath "$MICROPYTHON_DIR") $(sha256sum <"$MICROPYTHON_DIR/py/mpconfig.h")"
        step micropython-source "$source" use_checkout
    else
        source="$root $micropython_version"
        step micropython-source "$source" fetch_source
    fi
    step mpy-cross "$source" build_mpy_cross
    source+=" $(digest firmware/ports/setup.sh firmware/ports/unix)"
    step micropython-unix-c "$source $(digest firmware/ports/usermod c_core)" build_unix unix-c "$source" USER_C_MODULES="$root/firmware/ports/usermod"
    step micropython-unix-twin "$source" build_unix unix-twin "$source"
    if [ "$job" != run ]; then # loads the native modules of all ARM boards, in qemu-arm
        step micropython-unix-armhf "$source" build_unix unix-armhf "$source" CROSS_COMPILE=arm-linux-gnueabihf- LDFLAGS_EXTRA=-static
    fi
}

# The C core as a file for boards whose firmware comes from elsewhere: build/natmod/ARCH/_mqqb.mpy
build_natmods() {
    local arch folder
    for arch in x64 armv6m armv7m armv7emsp armv7emdp rv32imc; do
        folder=build/natmod/$arch
        rm -rf "$folder"
        mkdir -p "$folder"
        ln -s "$root/firmware/ports/natmod/Makefile" "$folder/Makefile"
        make -C "$folder" ARCH=$arch MPY_DIR="$root/build/micropython/source" PYTHON="$root/.venv/bin/python"
    done
}

natmod_part() {
    local key
    key="$(cat build/stamps/micropython-source) $(digest firmware/ports/natmod firmware/ports/usermod/mqqb/modmqqb.c c_core) $(sha256sum <firmware/ports/natmod/Makefile)"
    step natmods "$key" build_natmods
    step mip-package "$key $(digest firmware/mqqb firmware/node firmware/ports/natmod)" \
        .venv/bin/python firmware/ports/natmod/package.py build/micropython/mpy-cross/mpy-cross
}

programs
# Both at once: one waits for the network and the disk, the other for the processor. Each is a process group of its own
# (set -m), so that an interrupt ends all of it.
set -m
status=0
python_part &
python=$!
micropython_part &
micropython=$!
trap 'kill -TERM -- -$python -$micropython 2>/dev/null; exit 130' INT TERM HUP
wait $micropython || status=1
wait $python || status=1
trap - INT TERM HUP
if [ $status = 0 ] && [ "$job" != run ]; then natmod_part; fi # needs both
exit $status
