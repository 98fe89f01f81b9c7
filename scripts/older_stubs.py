"""Writes docs/older-names.md and the stubs of the SDK's modules below osmosis_grpc/rollout; --check only checks them.

The modules themselves are made while a program runs, see osmosis_grpc/compat/older_paths.py.
"""

import importlib
import sys
from pathlib import Path

from osmosis_grpc import agentic
from osmosis_grpc.compat.older_paths import ROLLOUT, names_of, recorded, sentence_of, source_of
from osmosis_grpc.compat.older_sentences import LIBRARY

ROOT = Path(__file__).resolve().parent.parent / "osmosis_grpc"
PAGE = ROOT.parent / "docs" / "older-names.md"
FACADE = ROOT / "rollout" / "__init__.pyi"


def stub(module: str) -> str:
    """Return the stub of a module: a line for each module that has its names."""
    places: dict[str, list[str]] = {}
    for name in names_of(module):
        source = source_of(module, name)
        assert source is not None
        places.setdefault(source[0], []).append(f"{source[1]} as {name}")
    return "".join(f"from {place} import {', '.join(names)}\n" for place, names in sorted(places.items()))


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


HEAD = """\
# Names of the older systems

Every public name of the Osmosis SDK 0.2.14, 0.2.18, 0.2.31, 0.3.2 and 0.3.8 and of the Agentic Rollout Library, as
`scripts/older_names.py` recorded them. A name works under the same path below `osmosis_grpc`, or its import raises an
ImportError with the sentence that this page has. `python scripts/older_stubs.py` writes the page.
[compatibility.md](compatibility.md) says how the names behave.

## Osmosis SDK
"""
_LIBRARY = """
## Agentic Rollout Library

All names are in `osmosis_grpc.agentic`. These work: {}. `OpenAIFunction` is an LLM function here, and not the schema of
the library.

| name | instead |
|---|---|
"""


def page() -> str:
    """Return the page of all names."""
    root = importlib.import_module("osmosis_grpc")
    parts = [HEAD]
    for module, names in sorted(recorded().items()):
        shown = f"osmosis_grpc.{module}" if module else "osmosis_grpc"
        if module:
            works = [name for name in sorted(names) if source_of(module, name)]
        else:
            works = [name for name in sorted(names) if name in root.__all__]
        parts.append(f"\n### `{shown}`\n")
        if works:
            parts.append("\nWorks: " + ", ".join(f"`{name}`" for name in works) + ".\n")
        instead: dict[str, list[str]] = {}
        for name in sorted(names - set(works)):
            sentence = str(sentence_of(module or "rollout", name, shown))
            instead.setdefault(sentence.partition(": ")[2], []).append(name)
        if instead:
            rows = [f"| {', '.join(f'`{name}`' for name in each)} | {text} |" for text, each in instead.items()]
            parts.append("\n| name | instead |\n|---|---|\n" + "\n".join(rows) + "\n")
    known = sorted({name for names in recorded("library").values() for name in names})
    parts.append(_LIBRARY.format(", ".join(f"`{name}`" for name in known if name in agentic.__all__)))
    parts += [f"| `{name}` | {LIBRARY[name]} |\n" for name in known if name not in agentic.__all__]
    return "".join(parts)


def main() -> int:
    """Write the stubs, or check them. Returns the exit code."""
    wanted = stubs() | {PAGE: page()}
    there = {path for path in FACADE.parent.rglob("*.pyi") if path != FACADE} | {
        path for path in [PAGE] if path.exists()
    }
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
