"""Write deploy/bill-of-materials.cdx.json from constraints.txt, or with --check see that it is fresh.

The file is a software bill of materials in the format CycloneDX 1.6: every pinned package with its package URL, and the
scripts of the viewer that come with the wheel. The scope of a package says what needs it. `required`: an agent server
(the package itself and its extra `server`). `optional`: other extras, and development.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
BILL = ROOT / "deploy" / "bill-of-materials.cdx.json"
VENDOR = ROOT / "osmosis_grpc" / "viewer" / "static" / "vendor" / "README.md"
"""Has the table of the scripts that come with the wheel."""
_SCRIPTS = re.compile(r"^\| `.+` \| (\S+) (\S+) \| (\S+), `.+` \|$", re.M)


def pinned(text: str) -> dict[str, str]:
    """Return the versions in the text of a constraints file, by canonical name. Raises ValueError for another line."""
    found = {}
    for line in text.splitlines():
        given = line.partition("#")[0].strip()
        if given:
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+_-]+)", given)
            if match is None:
                raise ValueError(f"constraints.txt: {given!r} is not NAME==VERSION")
            found[canonicalize_name(match[1])] = match[2]
    return found


def closure(wanted: Iterable[str]) -> set[str]:
    """Return the canonical names of the packages that requirements need, on this machine."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    left = [Requirement(text) for text in wanted]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        found.add(name)
        for extra in (*requirement.extras, ""):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                needs = [Requirement(text) for text in requires(name) or ()]
            except PackageNotFoundError:
                continue
            left += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
    return found


def bill(versions: dict[str, str], required: set[str]) -> dict[str, Any]:
    """Return the bill of materials as JSON values."""
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "osmosis-grpc", "bom-ref": "osmosis-grpc"}},
        "components": [
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{name}@{version}",
                "name": name,
                "version": version,
                "purl": f"pkg:pypi/{name}@{version}",
                "scope": "required" if name in required else "optional",
            }
            for name, version in sorted(versions.items())
        ]
        + [
            {
                "type": "library",
                "bom-ref": f"pkg:npm/{name}@{version}",
                "name": name,
                "version": version,
                "purl": f"pkg:npm/{name}@{version}",
                "licenses": [{"license": {"id": licence}}],
            }
            for name, version, licence in _SCRIPTS.findall(VENDOR.read_text())
        ],
    }


def made() -> str:
    """Return the text of the file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = closure((*project["dependencies"], *project["optional-dependencies"]["server"]))
    versions = pinned((ROOT / "constraints.txt").read_text())
    missing = required - versions.keys()
    if missing:
        raise ValueError(f"constraints.txt does not pin {', '.join(sorted(missing))}, and an agent server needs it")
    return json.dumps(bill(versions, required), indent=1) + "\n"


def main(check: bool) -> int:
    """Write the file, or compare it."""
    text = made()
    if not check:
        BILL.write_text(text)
    elif not BILL.exists() or BILL.read_text() != text:
        print(f"{BILL.name} is not what constraints.txt says: run python scripts/bill_of_materials.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
