"""Copies the files of the repository, as a release has them."""

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(r'^__version__ = "(.+)"', (ROOT / "osmosis_grpc" / "__init__.py").read_text(), re.M)[1]  # type: ignore[index]
EPOCH = "1577836800"
"""The time of each file in an archive, in Unix seconds: the first day of 2020, which zip files can express."""
_RELATIVE = re.compile(r"(?P<start>\]\()(?!https?:|#|mailto:)(?P<path>[^)\s]+)\)")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command, and return what it prints. Raises SystemExit with all output if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def changed() -> bool:
    """Return whether files differ from the last commit."""
    return bool(run("git", "status", "--porcelain", cwd=ROOT))


def copy(folder: Path, repository: str = "") -> Path:
    """Copy the files that git knows, and return the folder. Links of the README become links to `repository`."""
    names = run("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=ROOT).split("\0")
    for name in filter(None, names):
        if (ROOT / name).exists():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, place)
    if repository:
        _name(folder, repository.rstrip("/"))
    return folder


def _name(folder: Path, repository: str) -> None:
    """Let the page of the package on the index link to the repository."""
    readme, project = folder / "README.md", folder / "pyproject.toml"

    def link(found: re.Match[str]) -> str:
        kind = "blob" if re.search(r"\.(md|py|txt)(#|$)", found["path"]) else "raw"  # raw shows pictures
        return f"{found['start']}{repository}/{kind}/v{VERSION}/{found['path']})"

    readme.write_text(_RELATIVE.sub(link, readme.read_text()))
    urls = {"Repository": "", "Changelog": f"/blob/v{VERSION}/CHANGELOG.md", "Issues": "/issues"}
    table = "".join(f'{name} = "{repository}{path}"\n' for name, path in urls.items())
    project.write_text(
        project.read_text().replace("[project.scripts]", f"[project.urls]\n{table}\n[project.scripts]", 1)
    )
