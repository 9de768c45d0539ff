"""Build hook: setuptools, after the C source of `_mqqb` has been generated.

The extension is described in pyproject.toml; what cffi adds to it is one generated file, build/_mqqb.c.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the hooks that need nothing more


def _after_generation(hook: Callable[..., str]) -> Callable[..., str]:
    def generate_and_build(*arguments: Any, **options: Any) -> str:
        from build_mqqb import ffibuilder  # needs cffi, which is there only for a build

        Path("build").mkdir(exist_ok=True)
        for before in Path("build").glob("lib*"):  # setuptools packs what an earlier build has left there, moved or not
            shutil.rmtree(before)
        ffibuilder.emit_c_code("build/_mqqb.c")
        return hook(*arguments, **options)

    return generate_and_build


build_sdist = _after_generation(build_meta.build_sdist)
build_wheel = _after_generation(build_meta.build_wheel)
build_editable = _after_generation(build_meta.build_editable)
