"""The bill of materials has every pinned package, and says which ones an agent server needs."""

import json

import pytest

from scripts import bill_of_materials as bom


def test_every_pinned_package_is_in_the_bill():
    kept = json.loads(bom.BILL.read_text())
    pinned = bom.pinned((bom.ROOT / "constraints.txt").read_text())
    assert {row["name"]: row["version"] for row in kept["components"]} == pinned
    assert all(row["purl"] == f"pkg:pypi/{row['name']}@{row['version']}" for row in kept["components"])
    scopes = {row["name"]: row["scope"] for row in kept["components"]}
    assert (scopes["grpcio"], scopes["starlette"], scopes["pytest"]) == ("required", "required", "optional")


@pytest.mark.parametrize("line", ["grpcio", "grpcio>=1.74", "git+https://example.com/x"])
def test_a_line_without_a_version_is_refused(line):
    with pytest.raises(ValueError, match="NAME==VERSION"):
        bom.pinned(f"# a comment\n{line}\n")


def test_a_changed_pin_is_found(monkeypatch, capsys):
    monkeypatch.setattr(bom, "pinned", lambda text: dict.fromkeys(bom.closure(["grpcio", "osmosis-grpc[server]"]), "0"))
    assert bom.main(check=True) == 1
    assert "scripts/bill_of_materials.py" in capsys.readouterr().err
