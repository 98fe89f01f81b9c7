"""Builds the packages of clients/: a tarball for npm, and a Go module as module proxies serve it."""

import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

from scripts.release.sources import ROOT, VERSION, run

GO_NAME = "osmosis"
"""The module's name in the repository, where no host is decided."""
GO_MODULE = "example.com/osmosis"
"""What a release without a name of the module builds, to check it."""
_DATE = (2020, 1, 1, 0, 0, 0)
BILL = "bill-of-materials.cdx.json"


def npm(tree: Path, out: Path) -> Path:
    """Build the TypeScript trainer, and return its package."""
    client = tree / "clients" / "typescript"
    run("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", cwd=client)
    run("npm", "run", "generate", cwd=client)
    run("npm", "run", "build", cwd=client)
    package = json.loads((client / "package.json").read_text())
    if package["version"] != VERSION:
        raise SystemExit(f"clients/typescript/package.json has version {package['version']}, and this is {VERSION}")
    needs = [f"pkg:npm/{name.replace('@', '%40')}@{version}" for name, version in package["dependencies"].items()]
    _complete(client, package["name"], needs)
    (name,) = run("npm", "pack", "--silent", "--pack-destination", out, cwd=client).split()
    return out / name


def go(tree: Path, out: Path, module: str) -> Path:
    """Build the Go module, and return its zip, which is in a folder that `GOPROXY=file://` can name."""
    client = tree / "clients" / "go"
    run(Path(sys.executable).with_name("buf"), "generate", cwd=client)
    for path in client.rglob("*.go"):
        path.write_text(re.sub(rf'"{GO_NAME}/', f'"{module}/', path.read_text()))
    text = (client / "go.mod").read_text().replace(f"module {GO_NAME}\n", f"module {module}\n")
    (client / "go.mod").write_text(text)
    needs = [f"pkg:golang/{name}@{version}" for name, version in re.findall(r"^\t(\S+) (v\S+)", text, re.M)]
    _complete(client, module, needs)
    versions = out / "go" / module / "@v"
    versions.mkdir(parents=True)
    path = versions / f"v{VERSION}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(each for each in client.rglob("*") if each.is_file()):
            entry = zipfile.ZipInfo(f"{module}@v{VERSION}/{file.relative_to(client)}", _DATE)
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    (versions / f"v{VERSION}.mod").write_text(text)
    (versions / f"v{VERSION}.info").write_text(json.dumps({"Version": f"v{VERSION}", "Time": "2020-01-01T00:00:00Z"}))
    (versions / "list").write_text(f"v{VERSION}\n")
    return path


def _complete(client: Path, name: str, needs: list[str]) -> None:
    """Add the licence and the bill of materials."""
    shutil.copyfile(ROOT / "LICENSE", client / "LICENSE")
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "library", "name": name, "version": VERSION, "bom-ref": name}},
        "components": [
            {"type": "library", "bom-ref": purl, "name": purl.split("/", 1)[1].rsplit("@", 1)[0], "purl": purl}
            | {"version": purl.rsplit("@", 1)[1]}
            for purl in needs
        ],
    }
    (client / BILL).write_text(json.dumps(bill, indent=1) + "\n")
