#!/usr/bin/env bash
# Brings what a job needs onto this machine: programs (programs.txt), the virtual environment, MicroPython.
#   setup.sh run | firmware | release | test | bench | docs
# Everything is made under .venv/ and build/. A step is done again only when what it is made from has changed.
# PYTHON= names the interpreter, MICROPYTHON_DIR= a MicroPython checkout (1.25 or newer) to use instead of Debian's source.
set -euo pipefail
job=${1:?run, firmware, release, test, bench or docs}
cd "$(dirname "$0")/../.."
root=$PWD
export PYTHON=${PYTHON:-python3} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_CONSTRAINT=$root/tests/constraints.txt
micropython_version=1.25.0+ds-1
cpus=$(nproc)
if [ -n "${MICROPYTHON_DIR:-}" ] && [ ! -f "$MICROPYTHON_DIR/py/mpconfig.h" ]; then
    echo "set-up: MICROPYTHON_DIR=$MICROPYTHON_DIR is not a MicroPython checkout" >&2
    exit 1
fi
mkdir -p build/stamps build/logs build/micropython build/firmware
[ -w "${HOME:-/nonexistent}" ] || export HOME=$root/build
exec 9>build/setup.lock
flock 9

for_tests() { [ "$job" = test ] || [ "$job" = bench ]; }
say() { printf '  %s\n' "$*"; }
now() { echo "${EPOCHREALTIME/[.,]/}"; }
# digest FILE...: of names and contents; folders are walked
digest() { find "$@" -type f \( -name '*.[ch]' -o -name '*.py' -o -name '*.sh' -o -name '*.mk' -o -name '*.cmake' -o -name '*.txt' -o -name '*.toml' -o -name '*.ld' -o -name Makefile \) \
    -exec sha256sum {} + | sort | sha256sum | cut -d' ' -f1; }
# recipe FUNCTION...: a digest of how something is built
recipe() { declare -f "$@" | sha256sum | cut -d' ' -f1; }
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
    [ "$job" = run ] || jobs+="firmware "
    if for_tests; then jobs+="test "; fi
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
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get) # tshark's package would ask a question; sudo drops what is exported
    as_root "${apt[@]}" update
    as_root "${apt[@]}" install -y --no-install-recommends "$@" </dev/null
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

# requirements GROUP...: the lines of pyproject.toml; "run" is the package's own needs, its build tools and emulated boards.
# What names an extra of ordack's own would fetch ordack itself.
requirements() {
    "$PYTHON" - "$@" <<'PYTHON'
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    settings = tomllib.load(file)
groups = dict(settings["project"]["optional-dependencies"])
groups["run"] = settings["project"]["dependencies"] + settings["build-system"]["requires"] + groups["boards"] + groups["emulated"]
print("\n".join(line for group in sys.argv[1:] for line in groups[group] if not line.startswith("ordack[")))
PYTHON
}

# An environment that is there and new enough is kept, whoever made it.
create_venv() { .venv/bin/python -c 'import sys; assert sys.version_info >= (3, 11)' || "$PYTHON" -m venv --clear .venv; }

install_requirements() {
    requirements "$1" >"build/requirements-$1.txt"
    .venv/bin/python -m pip install -r "build/requirements-$1.txt"
    # pyserial has the same files: these must be the last, also after another pyserial was installed
    [ "$1" != hil ] || .venv/bin/python -m pip install --force-reinstall --no-deps pyserial-labgrid
}

# Not in .venv: there mypy would take them for CPython's modules too.
install_stubs() {
    requirements stubs >build/requirements-stubs.txt
    rm -rf build/typings
    .venv/bin/python -m pip install --target build/typings -r build/requirements-stubs.txt
}

install_ordack() { .venv/bin/python -m pip install --no-deps --no-build-isolation --editable .; }

python_part() {
    local key packages group folder
    [ -x .venv/bin/python ] || rm -f build/stamps/{venv,python-packages-*,ordack}
    step venv "$root" create_venv
    key="$root $(.venv/bin/python --version) $(sha256sum <tests/constraints.txt)"
    packages=run
    if for_tests; then packages+=" hil spark bridges docs dev"; fi
    [ "$job" != bench ] || packages+=" bench"
    [ "$job" != docs ] || packages=docs
    [ "$job" != release ] || packages+=" release"
    for group in $packages; do
        step "python-packages-$group" "$key $(requirements "$group")" install_requirements "$group"
    done
    # labgrid's own commands import what a file of boards names: hil.drivers
    if for_tests; then for folder in .venv/lib/python3*/site-packages; do echo "$root" >"$folder/checkout.pth"; done; fi
    if for_tests; then step micropython-stubs "$key $(requirements stubs)" install_stubs; fi
    [ "$job" != docs ] || return 0
    step ordack "$key $(digest pyproject.toml host/build_backend.py host/build_mqqb.py c_core host/native)" install_ordack
    if for_tests; then
        flock build/programs.lock true # Java is there
        step spark-classes "$key $(requirements spark) $(java -version 2>&1) $(sha256sum <tests/support/spark_classes.py)" \
            .venv/bin/python -m tests.support.spark_classes build/spark-classes.jsa
    fi
}

# ---- Debian's sources

# apt_sources [deb]: sets `apt` to a command with lists of its own, for Debian's sources or its packages. The machine's apt is
# left as it is, and its mirror is used.
apt_sources() {
    local kind=${1:-deb-src} folder=$root/build/micropython/apt mirror
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(LABEL) $(COMPONENT)' 'Created-By: Packages' | awk '$2 == "Debian" && $3 == "main" {print $1; exit}')
    if [ -z "$mirror" ]; then
        echo "apt knows no Debian mirror (run apt-get update; MICROPYTHON_DIR= names a MicroPython checkout to use instead of its source)"
        return 1
    fi
    mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
    echo "$kind [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" >"$folder/sources.list"
    apt=(apt-get -o "Dir::Etc::SourceList=$folder/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$folder/lists"
        -o "Dir::Cache=$folder/cache" -o APT::Sandbox::User=root)
    "${apt[@]}" update
}

# ---- MicroPython: build/micropython/source, mpy-cross, unix-c, unix-twin

fetch_source() {
    local apt
    apt_sources
    cd build/micropython
    rm -rf micropython-*
    "${apt[@]}" source "micropython=$micropython_version" || "${apt[@]}" source micropython
    ln -sfn "$(echo micropython-*/)" source
}

use_checkout() { ln -sfn "$(realpath "$MICROPYTHON_DIR")" build/micropython/source; }

# lwIP, which Debian takes out of MicroPython's source, put back; a checkout of the user's is left alone.
fetch_lwip() {
    local apt
    if [ -n "${MICROPYTHON_DIR:-}" ]; then
        [ -d "$MICROPYTHON_DIR/lib/lwip/src" ] || { echo "MICROPYTHON_DIR has no lib/lwip: git submodule update --init lib/lwip"; return 1; }
        return
    fi
    apt_sources
    cd build/micropython
    rm -rf lwip-*
    "${apt[@]}" source lwip
    [ -L source/lib/lwip ] || rmdir source/lib/lwip
    ln -sfn "../../$(echo lwip-*/)" source/lib/lwip
}

build_mpy_cross() {
    rm -rf build/micropython/mpy-cross
    make -j"$cpus" -C build/micropython/source/mpy-cross BUILD="$root/build/micropython/mpy-cross"
}

# made_for FOLDER KEY: empties a build folder that was made for another KEY, which stands for what `make` cannot follow in
# an existing one (settings, MicroPython itself)
made_for() {
    if [ "$(cat "$1/made-for" 2>/dev/null)" != "$2" ]; then
        rm -rf "$1"
        mkdir -p "$1"
        echo "$2" >"$1/made-for"
    fi
}

# build_unix NAME KEY [SETTING...]
build_unix() {
    local folder=$root/build/micropython/$1
    made_for "$folder" "$2"
    shift 2
    make -j"$cpus" -C build/micropython/source/ports/unix BUILD="$folder" MICROPY_MPYCROSS="$root/build/micropython/mpy-cross/mpy-cross" \
        VARIANT_DIR="$root/firmware/ports/unix" FROZEN_MANIFEST="$root/firmware/ports/unix/manifest.py" "$@"
}

with_tls=(MICROPY_PY_SSL=1 MICROPY_SSL_MBEDTLS=1)
without_tls=(MICROPY_PY_SSL=0 MICROPY_SSL_MBEDTLS=0)

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
    source+=" $(recipe build_unix) $(digest firmware/ports/unix)"
    step micropython-unix-c "$source $(digest firmware/ports/usermod c_core)" build_unix unix-c "$source" USER_C_MODULES="$root/firmware/ports/usermod" "${with_tls[@]}"
    step micropython-unix-twin "$source" build_unix unix-twin "$source" "${without_tls[@]}"
    step unsynced "$(sha256sum <hil/unsynced.c)" cc -O2 -Wall -Wextra -shared -fPIC -o build/unsynced.so hil/unsynced.c
    [ "$job" = run ] || firmware_part
}

# ---- firmware with our modules frozen in: build/firmware

# frozen_again FOLDER: an existing build folder does not notice that a module has gone
frozen_again() {
    local modules
    modules=$(find firmware/mqqb firmware/ordack/node -name '*.py' | sort)
    [ "$(cat "$1/modules" 2>/dev/null)" = "$modules" ] || rm -rf "$1"/frozen_*
    echo "$modules" >"$1/modules"
}

# build_mps2 NAME KEY [SETTING...]
build_mps2() {
    local folder=$root/build/firmware/$1
    made_for "$folder" "$2"
    frozen_again "$folder"
    shift 2
    make -j"$cpus" -C firmware/ports/mps2 MPY_DIR="$root/build/micropython/source" BUILD="$folder" \
        MICROPY_MPYCROSS="$root/build/micropython/mpy-cross/mpy-cross" "$@"
}

# build_send_only: the same firmware for boards that only send, which differs in what it freezes
build_send_only() {
    local folder=$root/build/firmware/mps2-an385-send-only
    rm -rf "$folder"
    cp -a build/firmware/mps2-an385 "$folder"
    rm -rf "$folder"/frozen_*
    make -j"$cpus" -C firmware/ports/mps2 MPY_DIR="$root/build/micropython/source" BUILD="$folder" \
        MICROPY_MPYCROSS="$root/build/micropython/mpy-cross/mpy-cross" USER_C_MODULES="$root/firmware/ports/usermod" \
        FROZEN_MANIFEST=manifest_send_only.py
}

# build_unix_board: MicroPython's unix port with TLS, the C core and our modules, for boards that run Linux. It differs from
# unix-c only in what it freezes, and begins with what that one has compiled. Always anew: headers are followed there only.
build_unix_board() {
    local folder=$root/build/firmware/unix
    rm -rf "$folder"
    cp -a build/micropython/unix-c "$folder"
    rm -rf "$folder"/frozen_*
    make -j"$cpus" -C build/micropython/source/ports/unix BUILD="$folder" MICROPY_MPYCROSS="$root/build/micropython/mpy-cross/mpy-cross" \
        VARIANT_DIR="$root/firmware/ports/unix" FROZEN_MANIFEST="$root/firmware/ports/manifest.py" \
        USER_C_MODULES="$root/firmware/ports/usermod" "${with_tls[@]}"
}

# A build folder is kept when only our own files change: then a few files are compiled, and it is linked again.
firmware_part() {
    local key frozen
    frozen=$(digest firmware/mqqb firmware/ordack/node firmware/ports/manifest.py firmware/ports/modules.py)
    step lwip-source "$(cat build/stamps/micropython-source)" fetch_lwip
    key="$(cat build/stamps/micropython-source) $(recipe build_mps2) $(digest firmware/ports/mps2/Makefile firmware/ports/rom_classes.py)"
    step firmware-mps2-an385 "$key $frozen $(digest firmware/ports/usermod c_core firmware/ports/mps2)" \
        build_mps2 mps2-an385 "$key" USER_C_MODULES="$root/firmware/ports/usermod"
    if for_tests; then # a board that has nothing of ours yet: ordack board deploy is tested on it
        step firmware-mps2-an385-send-only "$(cat build/stamps/firmware-mps2-an385) $(recipe build_send_only)" build_send_only
        step firmware-mps2-an385-stock "$key $(digest firmware/ports/mps2)" \
            build_mps2 mps2-an385-stock "$key" FROZEN_MANIFEST=manifest_stock.py
    fi
    step firmware-unix "$(cat build/stamps/micropython-unix-c) $frozen $(recipe build_unix_board)" build_unix_board
}

# ---- what boards with a stock firmware take

# The C core as a file for boards whose firmware comes from elsewhere: build/natmod/ARCH/_mqqb.mpy
build_natmods() {
    rm -rf build/natmod # also of processors that are no longer built for
    local arch folder
    for arch in x64 armv6m armv7m; do
        folder=build/natmod/$arch
        rm -rf "$folder"
        mkdir -p "$folder"
        ln -s "$root/firmware/ports/natmod/Makefile" "$folder/Makefile"
        make -C "$folder" ARCH=$arch MPY_DIR="$root/build/micropython/source" PYTHON="$root/.venv/bin/python"
    done
}

# nats-server that can sync each write: newer than the one of Debian 12
fetch_nats() {
    local apt
    apt_sources deb
    rm -rf build/bench/nats
    mkdir -p build/bench/nats
    cd build/bench/nats
    "${apt[@]}" download nats-server
    dpkg -x nats-server_*.deb .
}

natmod_part() {
    local key
    key="$(cat build/stamps/micropython-source) $(digest firmware/ports/natmod firmware/ports/usermod/mqqb/modmqqb.c c_core) $(sha256sum <firmware/ports/natmod/Makefile)"
    step natmods "$key" build_natmods
    step mip-package "$key $(digest firmware/mqqb firmware/ordack/node firmware/ports/natmod firmware/ports/modules.py)" \
        .venv/bin/python firmware/ports/natmod/package.py build/micropython/mpy-cross/mpy-cross
}

[ "$job" != docs ] || { python_part; exit; }
# Both at once, as one waits for the network and the disk, the other for the processor, and the first beside what Debian
# installs for tests, which takes as long. Each is a process group of its own (set -m), so that an interrupt ends all of it.
set -m
status=0
exec 8>build/programs.lock
flock 8
if [ "$job" != run ] && may_install; then
    (job=run && programs)
    others=programs
else
    programs
    others=:
fi
python_part 8>&- &
python=$!
micropython=$python
trap 'kill -TERM -- -$python -$micropython 2>/dev/null; exit 130' INT TERM HUP
($others) || { kill -TERM -- -$python 2>/dev/null; exit 1; }
flock -u 8
micropython_part 8>&- &
micropython=$!
wait $micropython || status=1
wait $python || status=1
trap - INT TERM HUP
if [ $status = 0 ] && [ "$job" != run ]; then natmod_part; fi # needs both
if [ $status = 0 ] && [ "$job" = bench ]; then step nats-server "$root" fetch_nats; fi
exit $status
