"""Writes the stubs of the Osmosis SDK's modules below osmosis_grpc/rollout for type checkers; --check checks them.

The modules themselves are made while a program runs, see osmosis_grpc/compat/older_paths.py.
"""

import sys
from pathlib import Path

from osmosis_grpc.compat.older_paths import ROLLOUT, names_of, recorded, source_of

ROOT = Path(__file__).resolve().parent.parent / "osmosis_grpc"
FACADE = ROOT / "rollout" / "__init__.pyi"


def stub(module: str) -> str:
    """Return the stub of a module."""
    lines = []
    for name in names_of(module):
        source = source_of(module, name)
        assert source is not None
        lines.append(f"from {source[0]} import {source[1]} as {name}\n")
    return "".join(sorted(lines))


def stubs() -> dict[Path, str]:
    """Return all stubs by their paths. A package has one even if it has no names."""
    modules = {name for name in recorded() if name.startswith(ROLLOUT.partition(".")[2] + ".")}
    packages = {name.rpartition(".")[0] for name in modules if name.count(".") > 1}
    packages |= {name.rpartition(".")[0] for name in packages if name.count(".") > 1}
    found = {}
    for module in modules | packages:
        place = ROOT.joinpath(*module.split("."))
        text = stub(module)
        if module in packages:
            found[place / "__init__.pyi"] = text
        elif text:
            found[place.with_suffix(".pyi")] = text
    with_names = {path for path, text in found.items() if text}
    return {path: text for path, text in found.items() if any(path.parent in each.parents for each in with_names)}


def main() -> int:
    """Write the stubs, or check them. Returns the exit code."""
    wanted = stubs()
    there = {path for path in FACADE.parent.rglob("*.pyi") if path != FACADE}
    if "--check" in sys.argv:
        wrong = [path for path in {*there, *wanted} if path not in there or wanted.get(path) != path.read_text()]
        for path in wrong:
            print(f"{path.relative_to(ROOT.parent)} is old: run python scripts/older_stubs.py", file=sys.stderr)
        return int(bool(wrong))
    for path in there - wanted.keys():
        path.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
