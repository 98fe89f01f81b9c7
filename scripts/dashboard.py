"""Write deploy/grafana/osmosis.json, the dashboard for Grafana, or with --check see that it is fresh.

Each panel is one row of the table. To change the dashboard, change the table and run this script.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "osmosis.json"
SELECTED = 'job=~"$job", instance=~"$instance"'
"""The label matchers of every query. The variables are at the top of the dashboard."""
WIDTH, HEIGHT = 8, 7
"""The size of a panel. The grid of Grafana has 24 columns."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart. `queries` are PromQL with the text of their legends; `%s` is where the label matchers go."""

    title: str
    description: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"


def quantiles(metric: str, by: str = "") -> tuple[tuple[str, str], ...]:
    """Return the queries for the median and the 95th percentile of a histogram, for each value of the label `by`."""
    labels = f"{by}, le" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    rate = f"sum by ({labels}) (rate({metric}_bucket{{%s}}[$__rate_interval]))"
    return tuple((f"histogram_quantile({q}, {rate})", f"{legend}{name}") for q, name in ((0.5, "p50"), (0.95, "p95")))


ROWS: dict[str, tuple[Panel, ...]] = {
    "Now": (
        Panel(
            "Rollouts in flight",
            "Rollouts that are accepted and have not ended, by agent.",
            "short",
            (("sum by (agent) (osmosis_rollouts_in_flight{%s})", "{{agent}}"),),
        ),
        Panel(
            "Slots and queue",
            "Rollouts that run, and rollouts that wait for a slot. A queue that stays means that servers are missing.",
            "short",
            (
                ("sum(osmosis_rollouts_running{%s})", "running"),
                ("sum(osmosis_queue_length{%s})", "queued"),
                ("sum(osmosis_agents_abandoned{%s})", "abandoned"),
            ),
        ),
        Panel(
            "Trainers and outcomes",
            "Attached trainers, outcomes on their way, and servers that drain.",
            "short",
            (
                ("sum(osmosis_attachments{%s})", "attached trainers"),
                ("sum(osmosis_outcomes_undelivered{%s})", "undelivered outcomes"),
                ("sum(osmosis_draining{%s})", "draining servers"),
            ),
        ),
    ),
    "Outcomes": (
        Panel(
            "Rollouts that end",
            "By status, each second.",
            "ops",
            (("sum by (status) (rate(osmosis_rollouts_total{%s}[$__rate_interval]))", "{{status}}"),),
        ),
        Panel(
            "Failures",
            "By agent, and by whose fault they are.",
            "ops",
            (
                (
                    "sum by (agent, error_category)"
                    ' (rate(osmosis_rollouts_total{%s, status="FAILED"}[$__rate_interval]))',
                    "{{agent}} {{error_category}}",
                ),
            ),
        ),
        Panel(
            "Mean reward",
            "Of the newest 1,024 rewards of each agent.",
            "short",
            (("avg by (agent) (osmosis_reward_mean{%s})", "{{agent}}"),),
        ),
        Panel(
            "Refused rollouts",
            "By the status of the refusal.",
            "ops",
            (("sum by (code) (rate(osmosis_admission_rejected_total{%s}[$__rate_interval]))", "{{code}}"),),
        ),
        Panel(
            "Outcomes given up",
            "In the last hour. Each one is lost to its trainer.",
            "short",
            (("sum by (instance) (increase(osmosis_outcomes_expired_total{%s}[1h]))", "{{instance}}"),),
        ),
        Panel(
            "Token prefix breaks",
            "Segments that began because a prompt changed earlier tokens. Each one costs training data.",
            "ops",
            (("sum by (instance) (rate(osmosis_token_prefix_breaks_total{%s}[$__rate_interval]))", "{{instance}}"),),
        ),
    ),
    "Where the time goes": (
        Panel(
            "Rollout duration",
            "From the acceptance to the end, by agent. A slow agent is here; the next two charts say why.",
            "s",
            quantiles("osmosis_rollout_duration_seconds", "agent"),
        ),
        Panel(
            "Chat duration",
            "Until the trainer answered. It is the model's time, not the agent's.",
            "s",
            quantiles("osmosis_llm_call_duration_seconds"),
        ),
        Panel("Tool duration", "By tool.", "s", quantiles("osmosis_tool_call_duration_seconds", "tool")),
        Panel(
            "Tokens",
            "Of ended rollouts, each second.",
            "ops",
            (("sum by (kind) (rate(osmosis_tokens_total{%s}[$__rate_interval]))", "{{kind}}"),),
        ),
        Panel(
            "Tool calls",
            "By tool, each second.",
            "ops",
            (("sum by (tool) (rate(osmosis_tool_call_duration_seconds_count{%s}[$__rate_interval]))", "{{tool}}"),),
        ),
        Panel(
            "Event loop lag",
            "How late the event loop runs. Above 0.1 s, code without await delays all rollouts.",
            "s",
            quantiles("osmosis_event_loop_lag_seconds"),
        ),
    ),
    "Process": (
        Panel(
            "Processor",
            "Cores in use.",
            "short",
            (("rate(process_cpu_seconds_total{%s}[$__rate_interval])", "{{instance}}"),),
        ),
        Panel("Memory", "Resident.", "bytes", (("process_resident_memory_bytes{%s}", "{{instance}}"),)),
        Panel(
            "Open files",
            "The part of the files that the process may open.",
            "percentunit",
            (("process_open_fds{%s} / process_max_fds{%s}", "{{instance}}"),),
        ),
        Panel(
            "Journal",
            "Bytes on disk, and the budget.",
            "bytes",
            (
                ("osmosis_journal_bytes{%s}", "{{instance}}"),
                ("osmosis_journal_budget_bytes{%s}", "{{instance}} budget"),
            ),
        ),
        Panel(
            "Journal commits",
            "Mean time of a transaction.",
            "s",
            (
                (
                    "rate(osmosis_journal_commit_seconds_sum{%s}[$__rate_interval])"
                    " / rate(osmosis_journal_commit_seconds_count{%s}[$__rate_interval])",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Failures of background jobs",
            "By job. The log has the traceback.",
            "ops",
            (
                (
                    "sum by (exported_job) (rate(osmosis_supervised_failures_total{%s}[$__rate_interval])) > 0",
                    "{{exported_job}}",
                ),
                ("sum(rate(osmosis_log_lines_dropped_total{%s}[$__rate_interval])) > 0", "dropped log lines"),
            ),
        ),
    ),
    "Calls": (
        Panel(
            "Answered calls",
            "By method and status.",
            "ops",
            (
                (
                    "sum by (grpc_method, grpc_status)"
                    " (rate(grpc_server_call_duration_seconds_count{%s}[$__rate_interval]))",
                    "{{grpc_method}} {{grpc_status}}",
                ),
            ),
        ),
        Panel(
            "Calls made",
            "To callbacks, by status.",
            "ops",
            (
                (
                    "sum by (grpc_method, grpc_status)"
                    " (rate(grpc_client_call_duration_seconds_count{%s}[$__rate_interval]))",
                    "{{grpc_method}} {{grpc_status}}",
                ),
            ),
        ),
        Panel("Version", "Of osmosis_grpc.", "short", (("sum by (version) (osmosis_build_info{%s})", "{{version}}"),)),
    ),
    "Trainers": (
        Panel(
            "Rollouts of trainers",
            "By status, each second.",
            "ops",
            (
                (
                    "sum by (status, evaluation) (rate(osmosis_trainer_rollouts_total{%s}[$__rate_interval]))",
                    "{{status}} evaluation={{evaluation}}",
                ),
            ),
        ),
        Panel(
            "Failures of trainers",
            "By boundary and reason.",
            "ops",
            (
                (
                    "sum by (boundary, reason) (rate(osmosis_trainer_failures_total{%s}[$__rate_interval]))",
                    "{{boundary}} {{reason}}",
                ),
            ),
        ),
        Panel(
            "Policy calls",
            "Open rollouts and open calls of the policy.",
            "short",
            (
                ("sum(osmosis_trainer_rollouts_open{%s})", "rollouts"),
                ("sum(osmosis_trainer_chats_open{%s})", "policy calls"),
            ),
        ),
        Panel(
            "Policy call duration",
            "The sampling alone. The rest of a chat is network and queue.",
            "s",
            quantiles("osmosis_trainer_chat_duration_seconds"),
        ),
        Panel(
            "Reward",
            "Mean of the newest 1,024 rewards.",
            "short",
            (("osmosis_trainer_reward_mean{%s}", "{{instance}} evaluation={{evaluation}}"),),
        ),
        Panel(
            "Policy lag",
            "Versions that an outcome's oldest token is behind.",
            "short",
            (
                ("osmosis_trainer_policy_lag_mean{%s}", "{{instance}} mean"),
                ("osmosis_trainer_policy_lag_max{%s}", "{{instance}} max"),
            ),
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """Return the dashboard as JSON values."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        at = {"h": 1, "w": 24, "x": 0, "y": top}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": at, "panels": []})
        top += 1
        for index, panel in enumerate(row):
            line, column = divmod(index, 24 // WIDTH)
            at = {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": top + line * HEIGHT}
            panels.append({"id": len(panels) + 1, "gridPos": at, **_panel(panel)})
        top += -(-len(row) // (24 // WIDTH)) * HEIGHT
    return {
        "uid": "osmosis-grpc",
        "title": "osmosis_grpc",
        "description": "Agent servers and trainers of osmosis_grpc. docs/observe.md says how to read it.",
        "tags": ["osmosis"],
        "schemaVersion": 39,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                _variable("job", "label_values(osmosis_build_info, job)"),
                _variable("instance", 'label_values(osmosis_build_info{job=~"$job"}, instance)'),
            ]
        },
        "panels": panels,
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": None}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": source,
                "expr": query.replace("%s", SELECTED),
                "legendFormat": legend,
            }
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


def main(check: bool) -> int:
    """Write the file, or compare it."""
    text = json.dumps(dashboard(), indent=1) + "\n"
    if not check:
        DASHBOARD.write_text(text)
    elif not DASHBOARD.exists() or DASHBOARD.read_text() != text:
        print(f"{DASHBOARD.name} is not what its table says: run python scripts/dashboard.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
