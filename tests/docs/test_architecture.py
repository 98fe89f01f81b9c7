"""docs/architecture.md shows the packages that there are."""

import re
import tomllib

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
