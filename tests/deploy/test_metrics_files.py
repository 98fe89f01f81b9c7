"""The dashboard and the alerts name metrics and labels that servers and trainers have, and every alert can fire."""

import json
import re
import shutil
import subprocess

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from osmosis_grpc.observability.exposition import render
from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import Trainer
from osmosis_grpc.trainer.metrics import TrainerMetrics
from tests.processes import ROOT

DEPLOY = ROOT / "deploy"
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}
SCRAPED = {"job", "instance", "le", "exported_job"}
"""Labels that Prometheus adds. It renames our label `job`."""
NOT_METRICS = re.compile(r'"[^"]*"|\b(?:by|on) \([^)]*\)|\[[^\]]*\]')
NAME = re.compile(r"\b(?:osmosis|grpc|process|up)[a-z_]*\b")


@pytest.fixture
async def exposed():
    """The names of all series, each with its labels."""
    found = {"up": set()}
    async with (
        AgentServer([CalculatorAgent()], port=0) as server,
        Trainer(server.address, ToolCallingMock()) as trainer,
    ):
        source = TrainerMetrics(trainer.scheduler.cache.metrics, trainer.metrics, {})
        readings = [*server.metrics.read(), *source.read()]
    for family, _ in readings:
        for suffix in SUFFIXES.get(family.kind, ("",)):
            found[family.name + suffix] = set(family.labels)
    for family in text_string_to_metric_families(render([])[0].decode()):
        found |= {sample.name: set(sample.labels) for sample in family.samples}
    return found


def expressions():
    dashboard = json.loads((DEPLOY / "grafana" / "osmosis.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    rules = [rule["expr"] for rule in alerts().values()]
    return [*shown, *rules, "osmosis_build_info"]


def alerts():
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


async def test_every_metric_and_label_exists(exposed):
    for expression in expressions():
        names = set(NAME.findall(NOT_METRICS.sub("", re.sub(r"{[^}]*}", "", expression))))
        assert names, expression
        assert names <= exposed.keys(), expression
        used = set(re.findall(r"(\w+)\s*=~?\s*\"", expression))
        used |= {label for by in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for label in re.split(r",\s*", by)}
        assert used <= SCRAPED.union(*(exposed[name] for name in names)), expression


async def test_every_metric_is_on_the_dashboard_or_has_a_reason(exposed):
    """A new metric is added to the dashboard, or here."""
    left_out = {"osmosis_callback_attempts_total", "osmosis_trainer_rollouts_from_journal_total"}
    left_out |= {"osmosis_trainer_policy_version", "osmosis_trainer_tokens_total", "osmosis_reward_bucket"}
    left_out |= {"osmosis_trainer_rollout_duration_seconds_bucket"}
    text = " ".join(expressions())
    ours = {name for name in exposed if name.startswith("osmosis_") and not name.endswith(("_sum", "_count"))}
    assert {name for name in ours if name not in text} == left_out


def test_every_alert_is_tested_and_explained():
    cases = yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yml").read_text())["tests"]
    fired = {row["alertname"] for case in cases for row in case["alert_rule_test"] if row["exp_alerts"]}
    assert fired == set(alerts())
    page = (ROOT / "docs" / "observe.md").read_text()
    assert [name for name in alerts() if f"`{name}`" not in page] == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
def test_every_alert_fires_and_a_healthy_server_fires_none():
    command = ["promtool", "test", "rules", "alerts_test.yml"]
    done = subprocess.run(command, cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout


def test_the_panels_do_not_overlap():
    dashboard = json.loads((DEPLOY / "grafana" / "osmosis.json").read_text())
    cells = [
        (x, y)
        for panel in dashboard["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
