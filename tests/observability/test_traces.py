"""A rollout is one trace, from the trainer through each chat to each tool, across two processes (`--otel`)."""

import asyncio
import json
import os
import sys
from collections import Counter
from contextlib import asynccontextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import RolloutRequest, Trainer, TrainerConfig
from tests.processes import run, server_process
from tests.waiting import until

QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]
CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")

EXPORTER = """
import os
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

class FileExporter(SpanExporter):
    def export(self, spans):
        with open(os.environ["SPANS_FILE"], "a") as file:
            file.writelines(span.to_json(indent=None) + "\\n" for span in spans)
        return SpanExportResult.SUCCESS
"""


@pytest.fixture
def exporter(tmp_path):
    """The environment of a server with an exporter that a package offers, and the file that it writes."""
    folder = tmp_path / "packages"
    info = folder / "file_exporter-1.dist-info"
    info.mkdir(parents=True)
    (folder / "file_exporter.py").write_text(EXPORTER)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: file-exporter\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[opentelemetry_traces_exporter]\nfile = file_exporter:FileExporter\n")
    spans = tmp_path / "spans"
    given = {"PYTHONPATH": str(folder), "OTEL_TRACES_EXPORTER": "file", "SPANS_FILE": str(spans)}
    return os.environ | given | {"OTEL_BSP_SCHEDULE_DELAY": "100"}, spans


@pytest.fixture
def memory():
    """The spans of this process."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    found = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(found))
    yield found
    found.shutdown()


def read(spans):
    return [json.loads(line) for line in spans.read_text().splitlines()] if spans.exists() else []


def hexadecimal(span):
    return f"0x{span.get_span_context().span_id:016x}"


class Watched(ToolCallingMock):
    """Remembers the current span of each call."""

    def __init__(self):
        super().__init__()
        self.spans = []

    async def __call__(self, request):
        self.spans.append(trace.get_current_span())
        return await super().__call__(request)


@pytest.mark.parametrize("transport", ["attach", pytest.param("callback", marks=pytest.mark.slow)])
async def test_a_rollout_is_one_trace_from_the_trainer_to_the_tool(exporter, memory, transport, tmp_path):
    environment, file = exporter
    policy = Watched()
    with server_process(*CALCULATOR, "--otel", "--no-journal", env=environment) as (_, address):
        async with Trainer(address, policy, transport=transport, config=TrainerConfig(otel=True)) as trainer:
            with trace.get_tracer("the user").start_as_current_span("training step") as step:
                outcome = await trainer.rollout(RolloutRequest(rollout_id="r", messages=QUESTION))
        await until(lambda: any(span["name"].startswith("invoke_agent") for span in read(file)))
    there, here = read(file), memory.get_finished_spans()
    assert outcome.status == "COMPLETED"
    trace_id = f"0x{step.get_span_context().trace_id:032x}"
    assert {span["context"]["trace_id"] for span in there} == {trace_id}
    assert {f"0x{span.get_span_context().trace_id:032x}" for span in here} == {trace_id}

    (root,) = (span for span in here if span.name.startswith("invoke_agent"))
    (served,) = (span for span in there if span["name"] == "invoke_agent calculator")
    assert root.parent.span_id == step.get_span_context().span_id
    assert served["parent_id"] == hexadecimal(root)
    children = [span for span in there if span is not served]
    assert {span["parent_id"] for span in children} == {served["context"]["span_id"]}
    assert Counter(span["name"] for span in children) == {"chat": 2, "execute_tool add": 1}
    chats = [span for span in here if span.name == "chat"]
    assert {span.parent.span_id for span in chats} == {root.get_span_context().span_id}
    assert sorted(map(hexadecimal, chats)) == sorted(map(hexadecimal, policy.spans))

    assert served["attributes"]["gen_ai.operation.name"] == "invoke_agent"
    assert served["attributes"]["osmosis.status"] == root.attributes["osmosis.status"] == "COMPLETED"
    asked = [span["attributes"] for span in there if span["name"] == "chat"]
    assert sorted(row["osmosis.chat.number"] for row in asked) == [1, 2]
    assert all(row["gen_ai.usage.output_tokens"] > 0 for row in asked)
    assert "gen_ai.input.messages" not in json.dumps(there), "content is opt-in"
    assert served["resource"]["attributes"]["service.name"] == "osmosis-grpc"


@asynccontextmanager
async def both(loop, policy, **options):
    config = ServerConfig(otel=True, **options)
    async with (
        AgentServer([loop], port=0, config=config) as server,
        Trainer(server.address, policy, config=TrainerConfig(otel=True, **options)) as trainer,
    ):
        yield trainer


async def test_content_is_in_the_spans_only_if_the_user_allows_it(memory):
    async with both(CalculatorAgent(), ToolCallingMock(), otel_content=True) as trainer:
        await trainer.rollout(RolloutRequest(rollout_id="r", messages=QUESTION))
    attributes = [dict(span.attributes) for span in memory.get_finished_spans()]
    assert any("What is 2 + 3?" in row.get("gen_ai.input.messages", "") for row in attributes)
    assert any("add" in row.get("gen_ai.output.messages", "") for row in attributes)
    assert [json.loads(row["gen_ai.tool.call.arguments"]) for row in attributes if "gen_ai.tool.call.arguments" in row]


async def test_a_rollout_that_a_restarted_server_continues_stays_in_its_trace(memory, tmp_path):
    class Replayable(CalculatorAgent):
        replayable = True

    class Gated(ToolCallingMock):
        chats, gate = 0, asyncio.Event()

        async def __call__(self, request):
            self.chats += 1
            if request.chat_number == 2:
                await self.gate.wait()
            return await super().__call__(request)

    policy, config, state = Gated(), ServerConfig(otel=True), tmp_path / "state"
    async with Trainer([], policy, listen="127.0.0.1:0", config=TrainerConfig(otel=True)) as trainer:
        async with AgentServer([Replayable()], port=0, connect=[trainer.address], config=config, state_dir=state):
            rollout = asyncio.create_task(trainer.rollout(RolloutRequest(rollout_id="r", messages=QUESTION)))
            await until(lambda: policy.chats == 2)
        async with AgentServer([Replayable()], port=0, connect=[trainer.address], config=config, state_dir=state):
            policy.gate.set()
            assert (await rollout).status == "COMPLETED"
    spans = memory.get_finished_spans()
    (served,) = (span for span in spans if span.name == "invoke_agent calculator")
    assert served.attributes["osmosis.rollout.resumed"] is True
    assert len({span.context.trace_id for span in spans}) == 1
    children = [span for span in spans if span.parent is not None and span.parent.span_id == served.context.span_id]
    assert Counter(span.name for span in children) == {"chat": 2, "execute_tool add": 1}
    assert [bool(span.attributes.get("osmosis.chat.recorded")) for span in children if span.name == "chat"] == [
        True,
        False,
    ]


async def test_failures_are_errors_in_the_trace(memory):
    class Broken(CalculatorAgent):
        async def run(self, ctx):
            await ctx.chat(list(ctx.request.messages))
            raise KeyError("secret of a user")

    async with both(Broken(), ToolCallingMock()) as trainer:
        outcome = await trainer.rollout(RolloutRequest(rollout_id="r", messages=QUESTION))
    assert outcome.status == "FAILED"
    rollouts = [span for span in memory.get_finished_spans() if span.name.startswith("invoke_agent")]
    assert len(rollouts) == 2
    assert {span.attributes["error.type"] for span in rollouts} == {"AGENT_EXCEPTION"}
    assert {span.status.status_code.name for span in rollouts} == {"ERROR"}
    assert "secret" not in "".join(span.to_json() for span in rollouts)


def test_without_the_option_opentelemetry_is_not_imported():
    code = "import sys, osmosis_grpc.trainer, osmosis_grpc.server, osmosis_grpc.serve.process; print(*sys.modules)"
    assert "opentelemetry" not in run("-c", code).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"OTEL_TRACES_EXPORTER": "nowhere"}, "nowhere of OTEL_TRACES_EXPORTER is not installed"),
        ({}, "install opentelemetry-exporter-otlp"),
    ],
)
def test_a_missing_exporter_is_said_before_the_start(tmp_path, variables, named):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    arguments = ("-m", "osmosis_grpc.serve", *CALCULATOR, "--grpc-port", "0", "--no-http", "--otel")
    done = run(*arguments, cwd=tmp_path, env=clean | variables)
    assert done.returncode == 2
    assert named in done.stderr
    assert not list(tmp_path.iterdir())


def test_without_the_sdk_the_extra_is_named(tmp_path):
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("raise ModuleNotFoundError")
    arguments = ("-m", "osmosis_grpc.serve", *CALCULATOR, "--grpc-port", "0", "--no-http", "--no-journal", "--otel")
    done = run(*arguments, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2, sys.executable
    assert "[otel]" in done.stderr
