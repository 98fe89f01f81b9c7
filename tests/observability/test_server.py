"""The metrics of an agent server's rollouts, queue, trainers, event loop and journal."""

import asyncio
import logging
import os
import time

import pytest

from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.observability.metric_families import OTHER
from osmosis_grpc.protocol.errors import AlreadyExists, ResourceExhausted
from osmosis_grpc.server import AgentServer, ServerConfig, ServerSecurity
from osmosis_grpc.settings.logs import BackgroundHandler
from osmosis_grpc.supervise import OnFailure, call_later, inject, job
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.callback_trainer import CallbackTrainer
from tests.faults.disks import small_disk
from tests.observability.agents import PATIENCE, USER, Mixed, policy, request, run_all
from tests.observability.scrape import scrape
from tests.ports import quiet_port
from tests.waiting import until

ALONE = job("test.alone", OnFailure.REPORT, "timer")
CANARY = "canary-7b1f0c-secret"


@pytest.fixture
def attach_to(stack):
    async def start(server, answers=policy, **options):
        return await stack.enter_async_context(Trainer([server.address], answers, **options))

    return start


async def test_values_are_right_after_known_rollouts(serve, attach_to):
    server = await serve(Mixed())
    trainer = await attach_to(server)
    await run_all(
        trainer,
        [
            *(request(f"ok-{n}", label=str(n)) for n in range(3)),
            request("no-reward"),
            request("raises-1"),
            request("raises-2"),
            request("tool-1"),
            request("hangs-1", agent_timeout=0.3),
            request("odd-1", label="-0.75"),
            request("calls-1", tools="add add search made_up"),
        ],
    )
    await until(lambda: not server.engine.capacity().undelivered)
    page = scrape(server.metrics)
    ended = {
        tuple(dict(labels)[name] for name in ("status", "finish_reason", "error_category")): value
        for (name, labels), value in page.samples.items()
        if name == "osmosis_rollouts_total"
    }
    assert ended == {
        ("COMPLETED", "stop", ""): 5,
        ("COMPLETED", OTHER, ""): 1,
        ("FAILED", "error", "agent"): 2,
        ("FAILED", "error", "tool"): 1,
        ("DEADLINE_EXCEEDED", "timeout", "agent"): 1,
    }
    assert page.labels("osmosis_rollouts_total", "agent") == {"mixed"}
    assert page.value("osmosis_rollout_duration_seconds_count", agent="mixed") == 10
    assert page.value("osmosis_rollout_duration_seconds_sum", agent="mixed") >= 0.3
    assert page.value("osmosis_llm_call_duration_seconds_count") == 10
    assert page.value("osmosis_tool_call_duration_seconds_count", tool="add") == 2
    assert page.value("osmosis_tool_call_duration_seconds_count", tool="search") == 1
    assert page.value("osmosis_tool_call_duration_seconds_count", tool=OTHER) == 1
    assert page.value("osmosis_tokens_total", kind="response") == 30
    assert page.value("osmosis_tokens_total", kind="prompt") > 30
    assert page.value("osmosis_reward_bucket", agent="mixed", le="-0.5") == 1
    assert page.value("osmosis_reward_bucket", agent="mixed", le="0.0") == 2
    assert page.value("osmosis_reward_bucket", agent="mixed", le="+Inf") == 4
    assert page.value("osmosis_reward_mean", agent="mixed") == pytest.approx((0 + 1 + 2 - 0.75) / 4)
    assert page.value("osmosis_callback_attempts_total") == 10
    assert page.value("osmosis_outcomes_undelivered") == 0
    assert page.value("osmosis_token_prefix_breaks_total") == 0


async def test_cancelled_and_superseded_rollouts_are_counted_as_such(serve):
    agent = Mixed()
    server = await serve(agent)
    async with CallbackTrainer(policy) as listener, RolloutClient(server.address) as client:
        for count, (name, attempt) in enumerate((("waits-0", 1), ("waits-1", 1), ("waits-1", 2)), 1):
            await client.init(request(name, attempt=attempt), callback=listener.callback())
            await until(lambda count=count: agent.waiting == count)
        await client.cancel("waits-0")
        await asyncio.wait_for(listener.outcome("waits-0"), PATIENCE)
    page = scrape(server.metrics)
    for reason in ("cancelled", "superseded"):
        labels = {"status": "CANCELLED", "finish_reason": reason, "error_category": ""}
        assert page.value("osmosis_rollouts_total", agent="mixed", **labels) == 1


async def test_a_prompt_that_changes_earlier_tokens_is_a_break(serve, attach_to):
    class Twice(Mixed):
        async def run(self, ctx):
            messages = [*ctx.request.messages]
            for _ in range(2):
                messages += [(await ctx.chat(messages)).message, USER]
            return ctx.complete(messages, reward=1.0)

    def drifting(asked):
        reply = policy(asked)
        if asked.chat_number == 2:
            reply.prompt_ids.flags.writeable = True
            reply.prompt_ids[0] += 1
        return reply

    server = await serve(Twice())
    trainer = await attach_to(server, drifting)
    (outcome,) = await run_all(trainer, [request("r")])
    assert [len(sample.segments) for sample in outcome.samples.values()] == [2]
    assert scrape(server.metrics).value("osmosis_token_prefix_breaks_total") == 1


async def test_running_and_waiting_rollouts_are_counted(serve, attach_to):
    agent = Mixed()
    server = await serve(agent, max_concurrent=2, max_queued=3)
    trainer = await attach_to(server)
    assert scrape(server.metrics).value("osmosis_rollouts_in_flight", agent="mixed") == 0
    running = [asyncio.ensure_future(trainer.rollout(request(f"waits-{n}"))) for n in range(5)]
    await until(lambda: agent.waiting == 2 and server.engine.capacity().queued == 3)
    page = scrape(server.metrics)
    assert page.value("osmosis_rollouts_in_flight", agent="mixed") == 5
    assert page.value("osmosis_rollouts_running") == 2
    assert page.value("osmosis_queue_length") == 3
    assert page.value("osmosis_attachments") == 1
    assert page.value("osmosis_draining") == 0
    async with CallbackTrainer(policy) as listener, RolloutClient(server.address) as client:
        for _ in range(2):
            with pytest.raises(ResourceExhausted):
                await client.init(request("one-more"), callback=listener.callback())
        with pytest.raises(AlreadyExists):
            await client.init(request("waits-0", label="another"), callback=listener.callback())
    agent.gate.set()
    await asyncio.wait_for(asyncio.gather(*running), PATIENCE)
    await server.drain()
    page = scrape(server.metrics)
    assert page.value("osmosis_rollouts_in_flight", agent="mixed") == 0
    assert page.value("osmosis_rollouts_running") == 0
    assert page.value("osmosis_draining") == 1
    assert page.value("osmosis_admission_rejected_total", code="RESOURCE_EXHAUSTED") == 2
    assert page.value("osmosis_admission_rejected_total", code="ALREADY_EXISTS") == 1


async def test_outcomes_that_cannot_be_delivered(serve):
    server = await serve(Mixed())

    async def refuse(outcome, state, credential):
        raise ResourceExhausted("not now")

    async with CallbackTrainer(policy, recorder=refuse) as listener, RolloutClient(server.address) as client:
        await client.init(request("r"), callback=listener.callback())
        await until(lambda: scrape(server.metrics).value("osmosis_callback_attempts_total") > 2)
        page = scrape(server.metrics)
        assert page.value("osmosis_outcomes_undelivered") == 1
        assert (
            page.value(
                "grpc_client_attempt_duration_seconds_count",
                grpc_method="osmosis.rollout.v1.TrainerService/Complete",
                grpc_status="RESOURCE_EXHAUSTED",
            )
            > 1
        )


async def test_the_lag_of_the_event_loop(serve):
    server = await serve(Mixed())
    name = "osmosis_event_loop_lag_seconds"
    await until(lambda: scrape(server.metrics).value(f"{name}_count") > 0)
    seen = scrape(server.metrics).value(f"{name}_count")
    time.sleep(1.0)  # blocks
    await until(lambda: scrape(server.metrics).value(f"{name}_count") > seen)
    page = scrape(server.metrics)
    assert page.value(f"{name}_bucket", le="+Inf") > page.value(f"{name}_bucket", le="0.25")
    assert page.value(f"{name}_sum") > 0.25


async def test_tools_of_a_rollout_that_goes_on_after_a_restart_keep_their_names(tmp_path, attach_to):
    class Replayable(Mixed):
        replayable = True

    asked, gate = asyncio.Event(), asyncio.Event()

    async def waiting(chat):
        asked.set()
        await gate.wait()
        return policy(chat)

    port, name = quiet_port(), "osmosis_tool_call_duration_seconds_count"
    async with AgentServer([Replayable()], port=port, state_dir=tmp_path / "state") as server:
        trainer = await attach_to(server, waiting)
        running = asyncio.ensure_future(trainer.rollout(request("ok-1", tools="add made_up")))
        await asked.wait()
    async with AgentServer([Replayable()], port=port, state_dir=tmp_path / "state") as server:
        gate.set()
        assert (await asyncio.wait_for(running, PATIENCE)).attempt == 1
        page = scrape(server.metrics)
        assert (page.value(name, tool="add"), page.value(name, tool=OTHER)) == (1, 1)


async def test_the_journal(stack, tmp_path, attach_to):
    server = await stack.enter_async_context(AgentServer([Mixed()], port=0, state_dir=tmp_path / "state"))
    before = scrape(server.metrics)
    trainer = await attach_to(server)
    await run_all(trainer, [request(f"ok-{n}", label="1") for n in range(20)])

    def size():
        files = [path for path in (tmp_path / "state").iterdir() if ".db" in path.name and "-shm" not in path.name]
        return sum(path.stat().st_size for path in files)

    await until(lambda: scrape(server.metrics).value("osmosis_journal_bytes") == size() > 0)  # commits may follow
    page = scrape(server.metrics)
    assert page.value("osmosis_journal_commit_seconds_count") > before.value("osmosis_journal_commit_seconds_count")
    assert page.value("osmosis_journal_commit_seconds_sum") > 0
    assert page.value("osmosis_journal_budget_bytes") == 10 * 1024**3
    assert page.value("osmosis_journal_failing") == 0
    assert page.value("osmosis_trajectory_events_dropped_total") == 0


async def test_events_that_a_full_disk_cannot_keep(stack, tmp_path, attach_to):
    disk = stack.enter_context(small_disk(tmp_path))
    agent = Mixed()
    server = await stack.enter_async_context(AgentServer([agent], port=0, state_dir=disk.folder))
    trainer = await attach_to(server)
    running = asyncio.ensure_future(trainer.rollout(request("waits-1", label="1")))
    await until(lambda: agent.waiting)
    disk.fill(os.getpid())
    agent.gate.set()
    assert (await asyncio.wait_for(running, PATIENCE)).reward == 1.0
    page = scrape(server.metrics)
    assert page.value("osmosis_trajectory_events_dropped_total") >= 2
    assert page.value("osmosis_journal_failing") == 1
    assert page.value("osmosis_reward_mean", agent="mixed") == 1.0, "what cannot be written is counted all the same"
    disk.free()
    await until(lambda: scrape(server.metrics).value("osmosis_journal_failing") == 0)


async def test_failures_of_jobs_and_lost_log_lines(serve):
    server = await serve(Mixed(), sweep_interval=0.02)
    name = "osmosis_supervised_failures_total"
    assert (name, frozenset({("job", "engine.sweep")})) in scrape(server.metrics).samples, (
        "a job is there before it fails"
    )
    inject("engine.sweep", RuntimeError("injected"))
    await until(lambda: scrape(server.metrics).value(name, job="engine.sweep") == 1)
    before = scrape(server.metrics).value(name, job=ALONE.name)
    inject(ALONE.name, RuntimeError("injected"))
    call_later(ALONE, 0.0, print)
    await until(lambda: scrape(server.metrics).value(name, job=ALONE.name) == before + 1)
    handler = BackgroundHandler(-1, waiting=0)
    logging.getLogger().addHandler(handler)
    try:
        for _ in range(4):
            logging.getLogger(__name__).error("one line too many")
        assert scrape(server.metrics).value("osmosis_log_lines_dropped_total") == 4
    finally:
        logging.getLogger().removeHandler(handler)


async def check_no_new_series(server, trainer, count):
    """Unique ids, groups, labels, metadata and hostile texts add no series."""

    def unique(name, **fields):
        return request(name, label="1", metadata={"tag": f"tag of {name}", name: 1}, **fields)

    kinds = ("ok", "raises", "odd", "tool")
    await run_all(trainer, [unique(f"{kind}-warm", tools=f"add {kind}-made-up") for kind in kinds])
    before = scrape(server.metrics)
    requests = (
        unique(f"{kinds[n % 50 if n % 50 < 4 else 0]}-{n}", tools=f"add tool-{n}", idempotency_key=f"key-{n}")
        for n in range(count)
    )
    assert len(await run_all(trainer, requests)) == count
    after = scrape(server.metrics)
    counted = {key: value for key, value in after.samples.items() if key[0] == "osmosis_rollouts_total"}
    assert sum(counted.values()) == count + len(kinds)
    assert after.series() == before.series()
    assert len(after.text) < len(before.text) + 20_000
    assert not [word for word in ("warm", "tag of", "key-", "tool-1", "ok-1", "made-up") if word in after.text]


async def test_unique_ids_and_labels_add_no_series(serve, attach_to):
    server = await serve(Mixed())
    await check_no_new_series(server, await attach_to(server), 200)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_ten_thousand_unique_ids_and_labels_add_no_series(serve, attach_to):
    server = await serve(Mixed())
    await check_no_new_series(server, await attach_to(server), 10_000)


HOSTILE = [
    "",
    " ",
    "a\nb 1",
    'quo"te',
    "back\\slash",
    "}",
    "x" * 5000,
    "\u202etxt",
    "\x00",
    "# HELP evil evil",
    "osmosis_evil_total 1",
    "{" * 100,
    CANARY,
]


async def test_hostile_tool_names_are_bounded(serve, attach_to):
    """What a model calls has no label of its own; what agents offer has, up to 50 names that can be shown."""
    agent = Mixed(tools=[*HOSTILE[:-1], *(f"offered_{n}" for n in range(100))])
    server = await serve(agent)

    def hostile(asked):
        reply = policy(asked)
        names = [*HOSTILE, *(f"offered_{n}" for n in range(100)), *(f"made_up_{n}" for n in range(100))]
        calls = [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
            for n, name in enumerate(names)
        ]
        return type(reply)(
            message={"role": "assistant", "content": "", "tool_calls": calls},
            tokens=reply.tokens,
            prompt_ids=reply.prompt_ids,
        )

    trainer = await attach_to(server, hostile)
    (outcome,) = await run_all(trainer, [request("ok-1", label="1")])
    assert outcome.reward == 1.0
    page = scrape(server.metrics)
    name = "osmosis_tool_call_duration_seconds_count"
    tools = page.labels(name, "tool")
    assert len(tools) == 51
    assert OTHER in tools
    assert {f"offered_{n}" for n in range(40)} < tools, "what may be shown of the first 50 names"
    assert 'quo"te' in tools, "it is escaped on the page"
    assert not [tool for tool in tools if len(tool) > 64 or not tool.isprintable() or tool.startswith("made_up")]
    assert CANARY not in page.text
    assert sum(page.value(name, tool=tool) for tool in tools) == len(HOSTILE) + 200
    assert "osmosis_evil_total" not in page.families


async def test_an_agent_of_an_earlier_process_is_other(stack, tmp_path):
    folder = tmp_path / "state"

    class Old(Mixed):
        name = "the-old-one"

    old = Old()
    async with (
        AgentServer([old], port=0, state_dir=folder) as server,
        CallbackTrainer(policy) as trainer,
        RolloutClient(server.address) as client,
    ):
        await client.init(request("waits-1"), callback=trainer.callback())
        await until(lambda: old.waiting)
        assert scrape(server.metrics).labels("osmosis_rollouts_in_flight", "agent") == {"the-old-one"}
        await server.stop(0.0)
        async with AgentServer([Mixed()], port=0, config=ServerConfig(trainer_grace=1)) as other:
            assert scrape(other.metrics).labels("osmosis_rollouts_in_flight", "agent") == {"mixed"}
    async with AgentServer([Mixed()], port=0, state_dir=folder) as server:
        await until(lambda: server.engine.capacity().completed or not server.engine.rollouts.in_flight())
        assert "the-old-one" not in scrape(server.metrics).text


async def test_no_secret_is_on_the_page(stack, serve, attach_to):
    server = await stack.enter_async_context(AgentServer([Mixed()], port=0, security=ServerSecurity(f"lab={CANARY}")))
    trainer = await attach_to(server, credentials=Credentials(token=CANARY))
    requests = [
        request(f"{kind}-{CANARY}", tools=CANARY, metadata={CANARY: CANARY}, label="1") for kind in ("ok", "odd")
    ]
    await run_all(trainer, requests)
    async with (
        CallbackTrainer(policy, tokens=CANARY) as listener,
        RolloutClient(server.address, token=CANARY) as client,
    ):
        callback = listener.callback(credential=CANARY, state=CANARY.encode())
        await client.init(request(f"callback-{CANARY}", api_key=CANARY), callback=callback)
        await asyncio.wait_for(listener.outcome(f"callback-{CANARY}"), PATIENCE)
        assert CANARY not in scrape(listener.source).text
    page = scrape(server.metrics)
    assert sum(v for k, v in page.samples.items() if k[0] == "osmosis_rollouts_total") == 3
    assert CANARY not in page.text
    assert "lab" not in page.labels("osmosis_rollouts_total", "agent")
