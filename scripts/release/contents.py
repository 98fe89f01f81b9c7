"""Says what each package contains. A file that no rule expects is an error, and so is a missing one."""

import re
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

RULES = {
    "wheel": (
        r"osmosis_grpc/[\w/]+\.(py|pyi|proto|json)",
        r"osmosis_(grpc|gateway)/py\.typed",
        r"osmosis_gateway/\w+\.py",
        r"osmosis_grpc/docs/[\w-]+\.md",
        r"osmosis_grpc/conformance/(\w+/)?\w+\.yaml",
        r"osmosis_grpc/cli/templates/\w+/[\w.]+\.template",
        r"osmosis_grpc/endpoints/presets/[\w-]+\.\w+",
        r"osmosis_grpc/viewer/(templates|static)/.+",
        r"osmosis_grpc-[\d.]+\.dist-info/(METADATA|WHEEL|RECORD|entry_points\.txt)",
        r"osmosis_grpc-[\d.]+\.dist-info/licenses/(LICENSE|osmosis_grpc/viewer/static/vendor/[\w-]+\.LICENSE)",
        r"osmosis_grpc-[\d.]+\.dist-info/sboms/bill-of-materials\.cdx\.json",
    ),
    "sdist": (
        r"(osmosis_grpc|gateway/osmosis_gateway|proto|conformance|deploy|clients)/.+",
        r"docs/[\w-]+\.md",
        r"(README|CHANGELOG)\.md|LICENSE|PKG-INFO|pyproject\.toml|buf\.yaml|\.gitignore",
    ),
    "npm": (r"package\.json|README\.md|LICENSE|bill-of-materials\.cdx\.json", r"build/(src|gen)/.+\.(js|d\.ts)"),
    "go": (
        r"go\.(mod|sum)|README\.md|LICENSE|bill-of-materials\.cdx\.json|buf\.gen\.yaml",
        r"(trainer|wire|debian|cmd/\w+|rollout/v1)/\w+(\.pb)?\.go",
    ),
}
NEEDED = {
    "wheel": (r"/py\.typed$", r"docs/agents\.md$", r"static/page\.js$", r"licenses/LICENSE$", r"/bill-of-materials"),
    "sdist": (r"^docs/agents\.md$", r"^LICENSE$", r"^conformance/vectors/", r"^clients/go/go\.mod$"),
    "npm": (r"^build/src/index\.js$", r"^build/src/index\.d\.ts$", r"^build/gen/.+outcome_pb\.js$", r"^LICENSE$"),
    "go": (r"^go\.mod$", r"^rollout/v1/outcome\.pb\.go$", r"^rollout/v1/services_grpc\.pb\.go$", r"^LICENSE$"),
}
NEVER = re.compile(r"(^|/)(tests?|__pycache__|node_modules|\.venv[^/]*|\.osmosis)(/|$)|\.(pyc|db|log)$")


def names(path: Path, kind: str) -> list[str]:
    """Return the names of the files in an archive, without the folder that holds all of them."""
    if kind in ("wheel", "go"):
        with zipfile.ZipFile(path) as archive:
            found = archive.namelist()
            return found if kind == "wheel" else [name.split("@", 1)[1].split("/", 1)[1] for name in found]
    with tarfile.open(path) as archive:
        return [member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()]


def faults(found: Iterable[str], kind: str) -> list[str]:
    """Return a sentence for each file that does not belong into a package, and for each that is missing."""
    found = list(found)
    wrong = [name for name in found if NEVER.search(name) or not any(re.fullmatch(rule, name) for rule in RULES[kind])]
    missing = [need for need in NEEDED[kind] if not any(re.search(need, name) for name in found)]
    return [f"{name} does not belong into the {kind}" for name in wrong] + [
        f"the {kind} has no file like {need}" for need in missing
    ]
