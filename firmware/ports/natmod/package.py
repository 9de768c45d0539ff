"""What mip and `ordack board deploy` copy to a board.

    package.py MPY_CROSS    makes build/mip: all modules compiled, the native modules, and a package.json
    package.py --list       writes package.json of the checkout: the modules as sources, for "mip install" from a forge

A board takes `mqqb/core_ARCH.mpy` for its own processor; mip cannot choose and copies all, deploy copies that one.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "build" / "mip"
FOLDERS = ("mqqb", "node")
NOT_ON_BOARDS = {"core_cffi.py", "cpython.py", "extras.py", "transfer.py"}  # ports/manifest.py tells why
VERSION = "0.1.0"
# Without asserts and line numbers: both would take heap on a board.
FLAGS = ["-O3"]


def modules() -> list[str]:
    """The modules that a board needs, as their paths under firmware/ and in its lib."""
    return [
        f"{folder}/{path.name}"
        for folder in FOLDERS
        for path in sorted((ROOT / "firmware" / folder).glob("*.py"))
        if path.name not in NOT_ON_BOARDS
    ]


def package(places: list[tuple[str, str]]) -> str:
    """A package.json: each file's place in lib, and where it is from here."""
    lines = ",\n".join(f"    {json.dumps(pair)}" for pair in places)
    return f'{{\n  "version": "{VERSION}",\n  "urls": [\n{lines}\n  ]\n}}\n'


def listing() -> str:
    """The package.json of the checkout."""
    return package([(name, f"firmware/{name}") for name in modules()])


def compile_all(mpy_cross: str) -> None:
    """Makes build/mip anew."""
    shutil.rmtree(PACKAGE, ignore_errors=True)
    places = []
    for name in modules():
        place = name.removesuffix(".py") + ".mpy"
        (PACKAGE / place).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [mpy_cross, *FLAGS, "-s", name, "-o", PACKAGE / place, ROOT / "firmware" / name], check=True
        )
        places.append(place)
    for module in sorted((ROOT / "build" / "natmod").glob("*/_mqqb.mpy")):
        place = f"mqqb/core_{module.parent.name}.mpy"
        shutil.copy(module, PACKAGE / place)
        places.append(place)
    (PACKAGE / "package.json").write_text(package([(place, place) for place in places]))


if __name__ == "__main__":
    if sys.argv[1] == "--list":
        (ROOT / "package.json").write_text(listing())
    else:
        compile_all(sys.argv[1])
