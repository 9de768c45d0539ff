"""Which board a name means: one of the file of boards, or one that needs no hardware. labgrid is needed only where
there is such a file.
"""

import os
from pathlib import Path

from hil.boards import ROOT, SENSOR, Board, BoardMissing
from hil.machines import open_emulated

RIG = ROOT / "rig.yaml"


def file() -> Path | None:
    """The file of boards: what LG_ENV names, else rig.yaml in the checkout; None: there is none, or it is empty, as
    after `scan > rig.yaml` where nothing is plugged in.
    """
    found = os.environ.get("LG_ENV") or (str(RIG) if RIG.exists() and RIG.stat().st_size else "")
    return Path(found) if found else None


def open_board(target: str, folder: Path, application: Path = SENSOR) -> Board:
    """The board that `target` names, switched off, its flash the not yet existing `folder` if it needs no hardware.
    Raises BoardMissing.
    """
    path = file()
    if path is not None:
        try:
            from hil import lab
        except ModuleNotFoundError as error:
            raise BoardMissing(f"{path} needs {error.name}: `make setup-test` installs it") from None
        environment = lab.load(path)
        if target in environment.config.get_targets():
            return lab.open_board(environment, target, folder, application)
    return open_emulated(target, folder, application)
