"""Do the C tests notice broken code? Builds it once for each line of a mutants.txt and runs the tests, which must fail.

Exit status 1 if a mutant survives or no longer applies. In mutants.txt `|` separates the parts (`\\|` is a bar in the
code); where lines break in the code makes no difference.
"""

import argparse
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FOLDERS = (ROOT / "c_core", ROOT / "host" / "native")
TESTS = (HERE, ROOT / "host" / "native" / "tests")
PROGRAMS = {  # which test what, and what they are linked with
    "mqqb.c": (("test_mqqb",), ("mqqb.c",)),
    "mqqb_line.c": (("test_line",), ("mqqb_line.c",)),
    "mqqb_scan.c": (("test_scan",), ("mqqb.c", "mqqb_scan.c")),
    "mqqb_capture.c": (("test_capture",), ("mqqb.c", "mqqb_line.c", "mqqb_scan.c", "mqqb_capture.c")),
    "mqqb_audit.c": (("test_audit", "test_audit_resends"), ("mqqb.c", "mqqb_audit.c")),
    "mqqb_run.c": (("test_run",), ("mqqb.c", "mqqb_run.c")),
    "mqqb_fast.c": (("test_fast",), ("mqqb.c", "mqqb_run.c", "mqqb_fast.c")),
}
PARTS = {  # included there
    "mqqb_sections.c": "mqqb_scan.c",
    "mqqb_capture_frames.c": "mqqb_capture.c",
    "mqqb_audit_tables.c": "mqqb_audit.c",
}
PROGRAMS |= {part: PROGRAMS[whole] for part, whole in PARTS.items()}
FLAGS = ["-std=c99", "-O1", "-w", *(f"-I{folder}" for folder in (*FOLDERS, HERE, ROOT / "build" / "c_core"))]
HOOK = ["-include", str(HERE / "assert_hook.h")]
SECONDS = 30


def find(name: str, folders: tuple[Path, ...]) -> Path:
    return next(folder / name for folder in folders if (folder / name).exists())


def compile_tests(folder: Path, files: set[str]) -> None:
    """The programs that test these files."""
    for program in {*(program for file in files for program in PROGRAMS[file][0]), "assert_hook"}:
        command = ["gcc", *FLAGS, "-c", str(find(f"{program}.c", TESTS)), "-o", str(folder / f"{program}.o")]
        subprocess.run(command, check=True)


def mutants(listed: Path) -> list[tuple[int, str, str, str]]:
    """Line number, file, code, and the mutant's code."""
    result = []
    for number, line in enumerate(listed.read_text().splitlines(), 1):
        if line and not line.startswith("#"):
            parts = [part.replace("\\|", "|") for part in re.split(r" (?<!\\)\|(?: |$)", line)]
            result.append((number, parts[0].strip(), parts[1], parts[2]))
    return result


def places(file: str, code: str) -> list[re.Match[str]]:
    """Where the code stands: in one place, or the line of mutants.txt is out of date."""
    return list(re.finditer(r"\s+".join(map(re.escape, code.split())), find(file, FOLDERS).read_text()))


def verdict(folder: Path, number: int, file: str, code: str, mutant: str) -> str:
    """`killed`, or why not."""
    found = places(file, code)
    if len(found) != 1:
        return f"the code is there {len(found)} times"
    place = folder / str(number)
    place.mkdir(exist_ok=True)
    for source in (path for sources in FOLDERS for path in sources.glob("mqqb*.[ch]")):
        text = source.read_text()
        if source.name == file:
            text = text[: found[0].start()] + mutant + text[found[0].end() :]
        (place / source.name).write_text(text)
    programs, names = PROGRAMS[file]
    sources = [str(place / name) for name in names]
    for program in programs:
        objects = [str(folder / f"{name}.o") for name in (program, "assert_hook")]
        command = ["gcc", *FLAGS, *HOOK, *sources, *objects, "-o", str(place / program)]
        if subprocess.run(command, capture_output=True).returncode != 0:
            return "it does not compile"
        try:
            if subprocess.run([str(place / program)], capture_output=True, timeout=SECONDS).returncode != 0:
                return "killed"
        except subprocess.TimeoutExpired:
            return "killed"
    return "SURVIVED"


def main() -> int:
    parser = argparse.ArgumentParser(description="break C code in many ways: its tests must fail each time")
    parser.add_argument("listed", type=Path, help="the list of mutants")
    parser.add_argument("folder", type=Path, help="for what is built")
    parser.add_argument("--sample", type=int, help="build so many, chosen at random, and only look at the others")
    parser.add_argument("--seed", type=int, default=1, help="of the choice")
    options = parser.parse_args()
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    cases = mutants(options.listed)
    if options.sample is not None and options.sample < len(cases):
        print(f"mutants: seed {options.seed}")
        chosen = random.Random(options.seed).sample(cases, options.sample)
        cases = [case for case in cases if case in chosen or len(places(case[1], case[2])) != 1]
    compile_tests(folder, {file for _, file, _, _ in cases})
    with ThreadPoolExecutor(2) as pool:
        verdicts = list(pool.map(lambda case: verdict(folder, *case), cases))
    for (number, file, code, mutant), found in zip(cases, verdicts, strict=True):
        if found != "killed":
            print(f"{options.listed}:{number}: {found}: {file}: {code!r} -> {mutant!r}")
    killed = verdicts.count("killed")
    print(f"mutants: {killed} passed, {len(cases) - killed} failed")
    return 0 if killed == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
