"""The pages as files. Each link leads to a file, each page is whole, and no text becomes HTML."""

import re
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest

from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.records.reading.list_filter import FilterError, ListOptions
from osmosis_grpc.viewer import export
from tests.viewer.conftest import CANARY, MARKUP, TURNS, source_of

EVERY = ListOptions(limit=0)
BAD = ListOptions(limit=0, states=("failed",))


class Read(HTMLParser):
    """The links, the elements and the text of a file."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.tags, self.ids, self.text = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.addresses += [given[name] for name in ("href", "src", "action", "hx-get", "sse-connect") if name in given]
        self.ids += [given["id"]] if "id" in given else []

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def write(folder):
    """Writes an export of the folder, and returns what was written and what was said."""

    async def run(target, listed=EVERY, how=export.write_folder):
        said = []
        async with FolderSource(folder) as source:
            return await how(source, target, listed, said.append), said

    return run


async def test_each_link_leads_to_a_file_and_each_page_is_whole(write, tmp_path):
    out = tmp_path / "out"
    done, _ = await write(out)
    files = [path for path in out.rglob("*") if path.is_file()]
    assert (done.rollouts, done.files, done.bytes) == (
        len(TURNS),
        len(files),
        sum(path.stat().st_size for path in files),
    )
    names = {str(path.relative_to(out)) for path in files}
    pages = {path.name: Read(path.read_text()) for path in out.glob("*.html")}
    for page in pages.values():
        for address in page.addresses:
            at = urlsplit(address)
            assert (at.scheme, at.netloc, address[:1] == "/") == ("", "", False), address
            assert not at.path or at.path in names, address
    assert len([name for name in pages if name.startswith("rollout-")]) == len(TURNS)
    (long,) = (path.read_text() for path in out.glob("rollout-long-*.html"))
    assert long.count('<details class="turn') == TURNS["long"]
    assert long.count(">result</h4>") == TURNS["long"] - 1


@pytest.mark.parametrize("how", [export.write_folder, export.write_file])
async def test_no_text_becomes_html_and_no_secret_is_there(write, tmp_path, how):
    await write(tmp_path / "out", how=how)
    files = list((tmp_path / "out").rglob("*.html")) or [tmp_path / "out"]
    for path in files:
        page = Read(path.read_text())
        assert CANARY not in path.read_text()
        assert str(tmp_path.parent) not in path.read_text()
        assert not {"img", "iframe", "object", "form"} & set(page.tags) - (
            {"form"} if how is export.write_folder else set()
        )
        assert re.search("default-src 'none'", path.read_text())
    assert any(MARKUP in Read(path.read_text()).text for path in files)


async def test_the_filters_select_the_rollouts(write, tmp_path):
    done, _ = await write(tmp_path / "out", BAD)
    assert done.rollouts == 1
    (page,) = (tmp_path / "out").glob("rollout-*.html")
    assert page.name.startswith("rollout-bad-")
    assert list((tmp_path / "out").glob("group-*.html")) == [], "a group has rollouts that were not selected"
    assert 'href="rollout-good' not in (tmp_path / "out" / "index.html").read_text()
    done, _ = await write(tmp_path / "two", ListOptions(limit=2))
    assert done.rollouts == 2


async def test_a_single_file_has_all_and_no_script(write, tmp_path):
    done, _ = await write(tmp_path / "out.html", how=export.write_file)
    page = Read((tmp_path / "out.html").read_text())
    assert (done.rollouts, done.files) == (len(TURNS), 1)
    assert "script" not in page.tags
    assert len(page.ids) == len(set(page.ids)) == len(TURNS) + 1
    targets = {address[1:] for address in page.addresses if address.startswith("#")} - {""}
    assert targets <= set(page.ids)
    assert len(targets) == len(TURNS)


async def test_a_single_file_that_is_too_large_is_refused_and_leaves_nothing(write, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "MOST_BYTES", 100_000)
    with pytest.raises(export.ExportError, match=r"rollouts have more; select fewer, such as with --state failed"):
        await write(tmp_path / "out.html", how=export.write_file)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", [export.write_folder, export.write_file])
async def test_what_cannot_be_written_is_named_and_nothing_is_changed(write, tmp_path, how):
    with pytest.raises(export.ExportError, match="no rollout matches"):
        await write(tmp_path / "out", ListOptions(limit=0, agent="nobody"), how)
    with pytest.raises(FilterError):
        await write(tmp_path / "out", ListOptions(limit=0, states=("lost",)), how)
    assert list(tmp_path.iterdir()) == []
    kept = tmp_path / "kept"
    kept.write_text("kept")
    with pytest.raises(FileExistsError, match="is there already"):
        await write(kept, how=how)
    assert kept.read_text() == "kept"


async def test_a_link_with_the_name_of_the_unfinished_file_is_not_followed(write, tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("kept")
    (tmp_path / ".out.html.new").symlink_to(kept)
    await write(tmp_path / "out.html", BAD, export.write_file)
    assert kept.read_text() == "kept"
    assert not (tmp_path / "out.html").is_symlink()


async def test_the_export_of_a_server_has_no_token(following, tmp_path):
    server, _ = following
    async with source_of(server) as source:
        await export.write_folder(source, tmp_path / "out", EVERY, print)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) > len(TURNS)
    assert all(CANARY.encode() not in path.read_bytes() for path in files)
