"""Makes the packages that mip and `ordack board deploy` copy to a board.

    package.py MPY_CROSS    makes build/mip: all modules compiled, the native modules, a package.json, and `made-from`,
                            the digest of the sources, which deploy compares
    package.py --list       writes package.json of the checkout: the modules as sources, for "mip install" from a forge

A board loads `mqqb/core_ARCH.mpy` of its own processor. mip cannot choose and copies all; deploy copies the right one.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from firmware.ports import modules  # noqa: E402

PACKAGE = ROOT / "build" / "mip"
# No asserts and line numbers: both take heap on a board.
FLAGS = ["-O3"]


def listing() -> str:
    """The package.json of the checkout: unchanged sources, with the modules of constants and texts that they import."""
    names = sorted([*modules.of_boards(), "mqqb/constants.py", "mqqb/problems.py"])
    return modules.package([(name, f"firmware/{name}") for name in names])


def compile_all(mpy_cross: str | Path, folder: Path = PACKAGE) -> None:
    """Make the folder anew."""
    made_from = modules.made_from()
    board = modules.write()
    shutil.rmtree(folder, ignore_errors=True)
    places = []
    for name in modules.of_boards():
        place = name.removesuffix(".py") + ".mpy"
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([mpy_cross, *FLAGS, "-s", name, "-o", folder / place, board / name], check=True)
        places.append(place)
    for module in sorted((ROOT / "build" / "natmod").glob("*/_mqqb.mpy")):
        place = f"mqqb/core_{module.parent.name}.mpy"
        shutil.copy(module, folder / place)
        places.append(place)
    (folder / "made-from").write_text(made_from)
    (folder / "package.json").write_text(modules.package([(place, place) for place in places]))


if __name__ == "__main__":
    if sys.argv[1] == "--list":
        (ROOT / "package.json").write_text(listing())
    else:
        compile_all(sys.argv[1])
