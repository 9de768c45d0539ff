"""Code size, stack and memory of the C core on a Cortex-M0+ against ceilings.json. Exit status 1: something is over.

Usage: size.py FOLDER  (object files and the report's inputs go there)

Stack: the compiler's figure for each function, summed along the deepest chain of calls inside the core. memcpy and
memset belong to the device's C library and are not counted.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CROSS = "arm-none-eabi-"
MACHINE = ["-mcpu=cortex-m0plus", "-mthumb"]
FLAGS = [*MACHINE, "-Os", "-ffreestanding", "-DNDEBUG", "-std=c99", "-ffunction-sections", "-fstack-usage"]
VARIANTS = {"minimal": ["-DMQQB_MINIMAL"], "whole": []}
STRUCTURES = ("mqqb_session", "mqqb_incoming", "mqqb_outgoing", "mqqb_session_header", "mqqb_user_header")


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compile_variant(folder: Path, name: str) -> Path:
    target = folder / f"{name}.o"
    run(f"{CROSS}gcc", *FLAGS, *VARIANTS[name], "-c", str(HERE / "mqqb.c"), "-o", str(target))
    return target


def sections(target: Path) -> dict[str, int]:
    """Bytes of text (code and constants), data and bss."""
    fields = run(f"{CROSS}size", str(target)).splitlines()[1].split()
    return {"text": int(fields[0]), "data": int(fields[1]), "bss": int(fields[2])}


def symbols(target: Path) -> dict[str, int]:
    """Bytes of each function and table."""
    lines = run(f"{CROSS}nm", "-S", "--defined-only", str(target)).splitlines()
    return {f[3]: int(f[1], 16) for f in (line.split() for line in lines) if len(f) == 4}


def undefined(target: Path) -> set[str]:
    return {line.split()[-1] for line in run(f"{CROSS}nm", "-u", str(target)).splitlines()}


def frames(target: Path) -> dict[str, int]:
    """Bytes of stack of each function alone. Raises ValueError if one is not a constant."""
    result = {}
    for line in target.with_suffix(".su").read_text().splitlines():
        place, size, kind = line.split("\t")
        if kind != "static":
            raise ValueError(f"{place}: the stack is {kind}")
        result[place.split(":")[-1]] = int(size)
    return result


def calls(target: Path) -> dict[str, set[str]]:
    """Who calls or jumps to whom, from the relocations of the code."""
    result: dict[str, set[str]] = {}
    function = ""
    for line in run(f"{CROSS}objdump", "-dr", str(target)).splitlines():
        if start := re.match(r"[0-9a-f]+ <(\S+)>:", line):
            function = start[1]
            result[function] = set()
        elif call := re.search(r"R_ARM_THM_(?:CALL|JUMP\d+)\s+(?:\.text\.)?(\S+)", line):
            result[function].add(call[1])
    return result


def deepest(function: str, frame: dict[str, int], graph: dict[str, set[str]], above: tuple[str, ...] = ()) -> int:
    """Bytes of stack of the deepest chain that begins with function. Raises ValueError on recursion."""
    if function in above:
        raise ValueError(f"{function} calls itself")
    inner = [deepest(callee, frame, graph, (*above, function)) for callee in graph.get(function, ()) if callee in frame]
    return frame[function] + max(inner, default=0)


def structure_sizes(folder: Path) -> dict[str, int]:
    source = folder / "structures.c"
    declarations = "".join(f"char size_of_{name}[sizeof({name})];\n" for name in STRUCTURES)
    source.write_text(f'#include "mqqb.h"\n{declarations}')
    target = folder / "structures.o"
    run(f"{CROSS}gcc", *FLAGS, f"-I{HERE}", "-c", str(source), "-o", str(target))
    return {name.removeprefix("size_of_"): size for name, size in symbols(target).items()}


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    ceilings = json.loads((HERE / "ceilings.json").read_text())
    targets = {name: compile_variant(folder, name) for name in VARIANTS}
    whole = targets["whole"]
    frame, graph = frames(whole), calls(whole)
    stack = {name: deepest(name, frame, graph) for name in frame}
    minimal_symbols = symbols(targets["minimal"])

    print(f"{'Cortex-M0+, -Os, NDEBUG':32} {'whole':>6} {'minimal':>8} {'stack':>6}")
    for name, size in sorted(symbols(whole).items(), key=lambda item: -item[1]):
        small = str(minimal_symbols.get(name, "-"))
        print(f"  {name:30} {size:6} {small:>8} {stack.get(name, '-'):>6}")

    structures = structure_sizes(folder)
    over = False

    def judge(what: str, value: int, ceiling: int) -> None:
        nonlocal over
        over |= value > ceiling
        print(f"  {what:38} {value:6} of {ceiling:5}  {'OVER' if value > ceiling else 'ok'}")

    print("against ceilings.json, in bytes")
    for name, target in targets.items():
        found = sections(target)
        judge(f"text, {name}", found["text"], ceilings["text"][name])
        judge(f"data, {name}", found["data"], ceilings["data"])
        judge(f"bss, {name}", found["bss"], ceilings["bss"])
    judge("memory for a session", structures["mqqb_session"], ceilings["session_bytes"])
    deepest_name = max(stack, key=lambda name: stack[name])
    judge(f"stack, {deepest_name}", stack[deepest_name], ceilings["stack_bytes"])
    judge("stack figures missing", len(set(graph) - set(frame)), 0)
    foreign = set().union(*(undefined(target) for target in targets.values()))
    judge(f"undefined symbols ({', '.join(sorted(foreign))})", len(foreign - set(ceilings["undefined"])), 0)
    for name in STRUCTURES[1:3]:
        print(f"  memory for {name:26} {structures[name]:6}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
