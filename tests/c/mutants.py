"""Do the C tests notice a broken core? Builds it once for each line of mutants.txt and runs the tests, which must fail.

Usage: mutants.py FOLDER. Exit status 1 if a mutant survives or no longer applies. In mutants.txt `|` separates the
parts (`\\|` is a bar in the code) and `@` is a line break.
"""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
CORE = HERE.parent.parent / "c_core"
PROGRAMS = {  # which test what, and what they are linked with
    "mqqb_audit.c": (("test_audit",), ("mqqb.c", "mqqb_audit.c")),
    "mqqb_capture.c": (("test_capture",), ("mqqb.c", "mqqb_scan.c", "mqqb_capture.c")),
    "": (("test_mqqb", "test_scan", "test_line"), ("mqqb.c", "mqqb_scan.c", "mqqb_line.c")),
}
FLAGS = ["-std=c99", "-O1", "-w", f"-I{CORE}"]
HOOK = ["-include", str(HERE / "assert_hook.h")]
SECONDS = 30


def compile_tests(folder: Path) -> None:
    for program in (*(program for programs, _ in PROGRAMS.values() for program in programs), "assert_hook"):
        command = ["gcc", *FLAGS, "-c", str(HERE / f"{program}.c"), "-o", str(folder / f"{program}.o")]
        subprocess.run(command, check=True)


def mutants() -> list[tuple[int, str, str, str]]:
    """Line number, file, code, and the mutant's code."""
    result = []
    for number, line in enumerate((HERE / "mutants.txt").read_text().splitlines(), 1):
        if line and not line.startswith("#"):
            parts = [part.replace("\\|", "|").replace("@", "\n") for part in re.split(r" (?<!\\)\|(?: |$)", line)]
            result.append((number, parts[0].strip(), parts[1], parts[2]))
    return result


def verdict(folder: Path, number: int, file: str, code: str, mutant: str) -> str:
    """`killed`, or why not."""
    place = folder / str(number)
    place.mkdir(exist_ok=True)
    for source in CORE.glob("mqqb*.[ch]"):
        text = source.read_text()
        if source.name == file:
            if text.count(code) != 1:
                return f"the code is there {text.count(code)} times"
            text = text.replace(code, mutant)
        (place / source.name).write_text(text)
    programs, names = PROGRAMS.get(file, PROGRAMS[""])
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
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    compile_tests(folder)
    cases = mutants()
    with ThreadPoolExecutor(2) as pool:
        verdicts = list(pool.map(lambda case: verdict(folder, *case), cases))
    for (number, file, code, mutant), found in zip(cases, verdicts, strict=True):
        if found != "killed":
            print(f"mutants.txt:{number}: {found}: {file}: {code!r} -> {mutant!r}")
    killed = verdicts.count("killed")
    print(f"mutants: {killed} passed, {len(cases) - killed} failed")
    return 0 if killed == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
