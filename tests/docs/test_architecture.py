"""docs/architecture.md shows all packages, and every path and name in it and in docs/decisions.md exists."""

import functools
import re
import tomllib

import pytest

from tests.processes import ROOT


def test_the_picture_shows_every_package():
    text = (ROOT / "docs" / "architecture.md").read_text()
    picture = re.search(r"```\n(rollout .*?)```", text, re.S)[1]
    names = set(re.findall(r"^([a-z_| ]+?)(?:  |$)", picture, re.M))
    shown = {name for row in names for name in re.split(r"[ |]+", row) if name}
    package = ROOT / "osmosis_grpc"
    packages = {p.stem for p in package.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert shown == packages - {"__init__", "__main__"}
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    layers_shown = [[name.strip() for name in row.split("|")] for row in layers]
    assert {name for row in layers_shown for name in row if not name.startswith("(")} - {"__main__"} == shown
    for path in re.findall(r"\| `([a-z_/]+\.py)`", text):
        assert (package / path).exists() or (ROOT / path).exists(), path


PAGES = [ROOT / "docs" / "architecture.md", ROOT / "docs" / "decisions.md"]
NAMED = sorted({(page.name, name) for page in PAGES for name in re.findall(r"`([^`\n]+)`", page.read_text())})
SOURCES = [
    path
    for folder in ("osmosis_grpc", "gateway", "proto", "tests", "benchmarks")
    for ending in ("py", "proto", "sql", "json")
    for path in (ROOT / folder).rglob(f"*.{ending}")
]


@functools.cache
def words():
    """Every word of the sources."""
    return {word for path in [*SOURCES, ROOT / "Makefile"] for word in re.findall(r"[A-Za-z_]\w*", path.read_text())}


@pytest.mark.parametrize(("page", "name"), NAMED)
def test_every_name_of_a_page_is_in_the_tree(page, name):
    if name.startswith("/") or name == "chttp2_hpack_parser":
        return  # an HTTP route, and a name of gRPC
    if re.fullmatch(r"[\w./-]*(/[\w./-]*|\.(py|proto|md))", name):
        assert any(str(path).endswith(f"/{name}") for path in SOURCES) or any(
            (ROOT / top / name).exists() for top in ("", "osmosis_grpc")
        ), name
    else:
        unknown = [word for word in re.findall(r"[A-Za-z_]\w*_\w+|[A-Z][a-z]+[A-Z]\w+", name) if word not in words()]
        assert unknown == []
