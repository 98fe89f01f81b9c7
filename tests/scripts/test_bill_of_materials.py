"""The bill of materials has every pinned package and vendored script, and says which ones an agent server needs."""

import json
import re
import tomllib

import pytest

from scripts import bill_of_materials as bom


def test_every_pinned_package_is_in_the_bill():
    kept = json.loads(bom.BILL.read_text())
    pinned = bom.pinned((bom.ROOT / "constraints.txt").read_text())
    packages = [row for row in kept["components"] if row["purl"].startswith("pkg:pypi/")]
    assert {row["name"]: row["version"] for row in packages} == pinned
    assert all(row["purl"] == f"pkg:pypi/{row['name']}@{row['version']}" for row in packages)
    scopes = {row["name"]: row["scope"] for row in packages}
    assert (scopes["grpcio"], scopes["starlette"], scopes["pytest"]) == ("required", "required", "optional")


def test_each_vendored_script_is_in_the_bill_with_its_licence_and_has_its_text():
    rows = [row for row in json.loads(bom.BILL.read_text())["components"] if row["purl"].startswith("pkg:npm/")]
    licences = {row["name"]: row["licenses"][0]["license"]["id"] for row in rows}
    assert licences == {"htmx.org": "0BSD", "htmx-ext-sse": "0BSD", "uplot": "MIT"}
    listed = set(re.findall(r"`([\w.-]+)`", bom.VENDOR.read_text()))
    assert listed == {path.name for path in bom.VENDOR.parent.iterdir()} - {"README.md"}
    project = tomllib.loads((bom.ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["license"].split(" AND ")) == {"Apache-2.0", *licences.values()}


@pytest.mark.parametrize("line", ["grpcio", "grpcio>=1.74", "git+https://example.com/x"])
def test_a_line_without_a_version_is_refused(line):
    with pytest.raises(ValueError, match="NAME==VERSION"):
        bom.pinned(f"# a comment\n{line}\n")


def test_a_changed_pin_is_found(monkeypatch, capsys):
    monkeypatch.setattr(bom, "pinned", lambda text: dict.fromkeys(bom.closure(["grpcio", "osmosis-grpc[server]"]), "0"))
    assert bom.main(check=True) == 1
    assert "scripts/bill_of_materials.py" in capsys.readouterr().err
