#!/usr/bin/env bash
# Makes FOLDER/ordack_VERSION_ARCHITECTURE.deb for the release of Debian whose python3 has the version of PYTHON=.
#   build.sh [FOLDER]
# Debian's own packages of what ordack needs are too old: the package has its own under /usr/lib/ordack, by
# tests/constraints.txt, with what boards on serial ports need and without Spark.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
out=$(realpath -m "${1:-build/deb}")
work=$out/work root=$out/work/root
export PIP_CONSTRAINT=$PWD/tests/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

rm -rf "$work"
mkdir -p "$root"/{DEBIAN,usr/bin,usr/lib/ordack,usr/share/doc/ordack,lib/systemd/system,etc/ordack}
umask 022
make --no-print-directory -s SETUP=: PYTHON_VENV="$(realpath -s "$python")" WHEELS="$work" wheel
"$python" -m pip install -q --no-compile --target "$root/usr/lib/ordack" "$(echo "$work"/ordack-*.whl)[boards]"
rm -rf "$root"/usr/lib/ordack/{bin,apsw/tests,apsw/sqlite_extra_binaries} # the last: programs that nobody calls
find "$root" -name '*.so*' -exec strip --strip-debug {} +

cat >"$root/usr/bin/ordack" <<'PYTHON'
#!/usr/bin/python3 -I
import sys

sys.path.insert(0, "/usr/lib/ordack")
from ordack.cli import main

main()
PYTHON
chmod 755 "$root/usr/bin/ordack"
sed 's|/opt/ordack/bin/ordack|/usr/bin/ordack|' host/examples/systemd/ordack.service >"$root/lib/systemd/system/ordack.service"
install -m 644 host/debian/ordack.toml "$root/etc/ordack/"
echo /etc/ordack/ordack.toml >"$root/DEBIAN/conffiles"
install -m 755 host/debian/{postinst,prerm,postrm} "$root/DEBIAN/"
cp -r --no-preserve=mode host/docs/. "$root/usr/share/doc/ordack/"
gzip -9n <CHANGELOG.md >"$root/usr/share/doc/ordack/changelog.gz"
{ cat LICENSE; echo; echo "The licences of the packages that ordack uses are in /usr/lib/ordack/*.dist-info."; } >"$root/usr/share/doc/ordack/copyright"
(cd "$root" && find etc lib usr -type f -exec md5sum {} + >DEBIAN/md5sums)

version=$("$python" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
architecture=$(dpkg --print-architecture)
libc=$(find "$root" -name '*.so*' -exec objdump -T {} + 2>/dev/null | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1)
sed -e "s|@version@|$version|; s|@architecture@|$architecture|; s|@libc@|${libc#GLIBC_}|" \
    -e "s|@maintainer@|${DEBFULLNAME:-ordack} <${DEBEMAIL:-root@localhost}>|; s|@size@|$(du -k -s --exclude=DEBIAN "$root" | cut -f 1)|" \
    -e "$("$python" -c 'import sys; a, b, *_ = sys.version_info; print(f"s|@python@|{a}.{b}|; s|@next_python@|{a}.{b + 1}|")')" \
    host/debian/control >"$root/DEBIAN/control"
dpkg-deb --root-owner-group --build "$root" "$out/ordack_${version}_$architecture.deb"
rm -rf "$work"
