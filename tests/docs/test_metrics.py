"""docs/observe.md lists the metrics that there are: their names, types, labels and what they say."""

import re
import urllib.request

from osmosis_gateway.http_server import serve_metrics
from osmosis_grpc.observability.metric_families import FAILURES
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import Trainer
from tests.observability.scrape import Page
from tests.processes import ROOT

TEXT = (ROOT / "docs" / "observe.md").read_text()
SECTION = re.search(r"\n## Metrics\n(.*?)\n## ", TEXT, re.S)[1]
SERVER, TRAINER = re.findall(r"\| metric \| type \|.*?\n\|[-|]+\n((?:\|.*\n)+)", SECTION)


def row(family):
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.kind} | {labels} | {family.help} |"


def rows(source):
    return [row(family) for family, _ in source.read()]


async def test_the_table_of_a_server_is_what_its_page_shows(tmp_path):
    import asyncio

    async with (
        AgentServer([CalculatorAgent()], port=0, state_dir=tmp_path / "state") as server,
        serve_metrics(server) as http,
    ):
        page = await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://{http.address}/metrics").read())
        listed = rows(server.metrics)
    assert SERVER.splitlines() == listed
    page = Page(page.decode())
    shown = {
        (name + "_total" * (family.type == "counter"), family.type, family.documentation)
        for name, family in page.families.items()
        if not name.startswith("process_")
    }
    cells = [[cell.strip().strip("`") for cell in line.split("|")] for line in SERVER.splitlines()]
    assert shown == {(name, kind, text) for _, name, kind, _, text, _ in cells}
    for _, name, kind, labels, _, _ in cells:
        family = page.families[name.removesuffix("_total") if kind == "counter" else name]
        told_labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert told_labels <= set(re.findall(r"\w+", labels))
        if not labels:
            assert family.samples, f"{name} has a value from the start"


async def test_the_table_of_a_trainer_is_what_its_collector_has():
    async with Trainer([], lambda request: None, listen="127.0.0.1:0") as trainer:
        listed = rows(trainer.source)
    shared = [line for line in listed if line in SERVER.splitlines()]
    assert TRAINER.splitlines() == [line for line in listed if line not in shared]
    assert [line for line in shared if "`grpc_" not in line] == [row(FAILURES)]
