"""scripts/protocol_docs.py makes docs/protocol.md from the comments of the proto files."""

import re
import runpy

import pytest

from tests.processes import ROOT, run

SCRIPT = ROOT / "scripts" / "protocol_docs.py"
PAGE = (ROOT / "docs" / "protocol.md").read_text()


def test_the_committed_page_is_fresh():
    result = run(str(SCRIPT), "--check")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_stale_page_is_found(monkeypatch, tmp_path, capsys):
    script = runpy.run_path(str(SCRIPT))
    stale = tmp_path / "protocol.md"
    stale.write_text("old")
    monkeypatch.setitem(script["main"].__globals__, "PAGE", stale)
    assert script["main"](True) == 1
    assert "run make generate" in capsys.readouterr().err
    assert stale.read_text() == "old"
    assert script["main"](False) == 0
    assert script["main"](True) == 0
    assert stale.read_text() == PAGE


def test_a_file_that_the_script_does_not_know_is_named():
    script = runpy.run_path(str(SCRIPT))
    files = [file for file in script["descriptors"]().file if not file.name.endswith("/error.proto")]
    with pytest.raises(SystemExit, match="error"):
        script["page"](files)


def test_headings_are_unique_and_tables_have_no_hole():
    headings = re.findall(r"^#+ (.+)$", PAGE, re.M)
    anchors = [re.sub(r"[^a-z0-9 -]", "", heading.lower()) for heading in headings]
    assert len(anchors) == len(set(anchors))
    assert {"ChatRequest", "RolloutService.Init", "ChatPurpose"} <= set(headings)
    for row in re.findall(r"^\|(?! ?\||--)(.+)\|$", PAGE, re.M):
        cells = re.split(r"(?<!\\)\|", row)
        assert all(cell.strip() for cell in cells), row
