"""POST /rollout of 0.2.18 and 0.3.0: our server, and a controller that takes the two callbacks."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from osmosis_gateway.http_server import serve_http
from osmosis_gateway.standalone import serve_standalone
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.settings.settings import RolloutClientSettings, RolloutSettings
from osmosis_grpc.trainer import RolloutClient
from tests.legacy.old_controller import KEY, OldController
from tests.legacy.workflows import Contains, Loop, Sums, config
from tests.waiting import until

QUICK = {"outbox_delay": (0.05, 0.2), "retry_delay": (0.05, 0.2), "stop_again_after": (0.05, 0.1)}
CLIENT = RolloutClientSettings(retry_base_delay=0.1, retry_max_delay=1.0)


def workflow() -> WorkflowRunnable:
    return WorkflowRunnable(Sums, config, Contains)


@asynccontextmanager
async def serving(
    *agents: Any, security: ServerSecurity | None = None, lease_times: Any = None, **more: Any
) -> AsyncIterator[tuple[AgentServer, str]]:
    """An agent server, and the HOST:PORT of its HTTP."""
    loops = list(agents) or [workflow()]
    async with (
        AgentServer(loops, port=0, security=security, config=ServerConfig(**(QUICK | more))) as server,
        serve_http(server, port=0, settings=RolloutSettings(client=CLIENT), lease_times=lease_times) as http,
    ):
        yield server, http.address


def multiplies(rollout_id: str, sample: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Call the tool, and then tell its result."""
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": f"It is {messages[-1]['content']}."}
    function = {"name": "multiply", "arguments": '{"a": 2, "b": 3}'}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call-1", "type": "function", "function": function}],
    }


@pytest.mark.row("SDK 80")
async def test_a_controller_of_0_2_18_gets_both_callbacks_of_a_workflow():
    async with serving() as (_, address), OldController() as controller:
        status, answer = await controller.start(address, metadata={"samples": ["first", "second"]})
        completion, graded = await controller.ended()
    assert (status, answer) == (200, {})
    assert (completion.status, completion.err_message, completion.err_category) == ("success", None, None)
    assert graded.status == "success"
    assert {name: (s.reward, s.label, s.metrics) for name, s in graded.samples.items()} == {
        "first": (1.0, "6", {"length": 2}),
        "second": (1.0, "6", {"length": 2}),
    }
    assert [message["role"] for message in graded.samples["first"].messages] == ["user", "assistant"]
    assert [(rollout, sample) for rollout, sample, _ in controller.chats] == [("r1", "first"), ("r1", "second")]
    assert controller.chats[0][2] == {
        "messages": [{"role": "user", "content": "What is 2 * 3?"}],
        "model": "osmosis-rollout",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
    }
    assert controller.calls == [("completed", "r1"), ("grader", "r1")]


@pytest.mark.parametrize("named", [True, False], ids=["rollout-id", "no-rollout-id"])
async def test_a_controller_of_0_3_0_with_one_key_gets_its_sample(named):
    async with serving() as (_, address), OldController(one_sample=True) as controller:
        controller.chat_key = KEY
        more = {} if named else {"rollout_id": None}
        status, answer = await controller.start(address, llm_api_key=..., **more)
        await until(lambda: controller.grades)
    [graded] = controller.grades.values()
    assert (status, answer, controller.problems) == (202, {}, [])
    assert (graded.status, graded.sample.reward) == ("success", 1.0)


async def test_a_callback_with_one_sample_has_it_under_both_keys():
    async with serving() as (_, address), OldController() as controller:
        await controller.start(address)
        _, graded = await controller.ended()
    assert {"id": "solver", **graded.sample} == graded.samples["solver"].model_dump()


@pytest.mark.parametrize(("metadata", "status"), [({"grader": "removes"}, "success"), ({}, "failure")])
async def test_a_sample_that_is_not_trained_on_is_no_second_sample(metadata, status):
    async with serving() as (_, address), OldController(one_sample=True) as controller:
        await controller.start(address, metadata={"samples": ["first", "second"], **metadata})
        _, graded = await controller.ended()
    assert graded.status == status
    assert (graded.sample is not None and graded.sample.reward == 1.0) is (status == "success")


@pytest.mark.parametrize("one_sample", [False, True], ids=["r80-0.2.18", "0.3.0"])
@pytest.mark.row("SDK 80")
async def test_a_controller_gets_both_callbacks_of_an_agent_loop(one_sample):
    async with serving(Loop()) as (_, address), OldController(multiplies, one_sample=one_sample) as controller:
        status, answer = await controller.start(address)
        completion, graded = await controller.ended()
    assert (status, answer) == (202 if one_sample else 200, {})
    assert (completion.status, graded.status) == ("success", "success")
    sample = graded.sample if one_sample else graded.samples["main"]
    assert sample.reward == 1.0
    assert [message["role"] for message in sample.messages] == ["user", "assistant", "tool", "assistant"]
    tools = [body["tools"][0]["function"]["name"] for _, _, body in controller.chats]
    assert tools == ["multiply", "multiply"], "every chat has the tools, because the answer to the request has none"


@pytest.mark.parametrize(
    ("more", "agent", "grader", "category", "text"),
    [
        ({"metadata": {"raise": "RuntimeError"}}, "failure", "failure", "agent_error", "the agent broke"),
        ({"metadata": {"raise": "ValueError"}}, "failure", "failure", "validation_error", "the agent broke"),
        ({"metadata": {"sleep": 60}, "agent_timeout_sec": 0.2}, "failure", "failure", "timeout", "agent_timeout"),
        ({"agent_timeout_sec": 0}, "failure", "failure", "timeout", "agent_timeout"),
        ({"metadata": {"grader": "broken"}}, "success", "failure", "agent_error", "the grader broke"),
        (
            {"metadata": {"grader": "slow"}, "grader_timeout_sec": 0.2},
            "success",
            "failure",
            "timeout",
            "grader_timeout",
        ),
        ({"metadata": {"samples": []}}, "failure", "failure", "validation_error", "no sample"),
    ],
    ids=["r65", "r65-validation", "r66-agent", "r66-none", "r63-grader", "r66-grader", "r61"],
)
@pytest.mark.row("SDK 80")
async def test_each_failure_is_one_result_per_channel_with_a_text(more, agent, grader, category, text):
    async with serving() as (server, address), OldController() as controller:
        await controller.start(address, **more)
        completion, graded = await controller.ended()
        await until(lambda: not server.engine.capacity().undelivered)
    assert (completion.status, graded.status, graded.err_category) == (agent, grader, category)
    assert text in graded.err_message
    assert agent == "success" or (completion.err_category == category and text in completion.err_message)
    assert all(sample.reward is None for sample in graded.samples.values()), "row 63: no reward is sent"
    assert set(graded.samples) == ({"solver"} if controller.chats else set()), "the samples are kept"
    assert controller.calls == [("completed", "r1"), ("grader", "r1")]


@pytest.mark.parametrize(
    ("metadata", "rewards", "text"),
    [
        ({"grader": "forgets"}, {"first": None, "second": None}, "'second'"),
        ({"grader": "removes"}, {"first": 1.0, "second": None}, None),
    ],
    ids=["r60-forgets", "r60-removes"],
)
@pytest.mark.row("SDK 80")
async def test_a_sample_without_a_reward_is_named_unless_it_is_removed(metadata, rewards, text):
    async with serving() as (_, address), OldController() as controller:
        await controller.start(address, metadata=metadata | {"samples": ["first", "second"]})
        completion, graded = await controller.ended()
    assert completion.status == "success"
    assert {name: sample.reward for name, sample in graded.samples.items()} == rewards
    assert (graded.status, graded.err_category) == (("failure", "validation_error") if text else ("success", None))
    assert text is None or text in graded.err_message
    assert graded.samples["second"].remove_sample is (text is None)


@pytest.mark.row("SDK 62", "SDK 80")
async def test_without_label_and_metadata_the_grader_callback_says_why_there_is_no_grade():
    async with serving() as (_, address), OldController() as controller:
        await controller.start(address, label=None)
        completion, graded = await controller.ended()
    assert (completion.status, graded.status) == ("success", "failure")
    assert "no label" in graded.err_message


@pytest.mark.row("SDK 80")
async def test_without_a_grader_callback_the_grader_does_not_run():
    async with serving() as (server, address), OldController() as controller:
        await controller.start(address, metadata={"grader": "broken"}, grader_callback_url=None)
        await until(lambda: "r1" in controller.completions and not server.engine.capacity().undelivered)
    assert controller.completions["r1"].status == "success"
    assert controller.calls == [("completed", "r1")]


@pytest.mark.row("SDK 64", "SDK 80")
async def test_a_chat_for_judging_is_refused_because_the_controller_would_train_on_it():
    async with serving() as (_, address), OldController() as controller:
        await controller.start(address, metadata={"grader": "judge"})
        _, graded = await controller.ended()
    assert graded.status == "failure"
    assert "judging" in graded.err_message
    assert len(controller.chats) == 1


@pytest.mark.parametrize("fault", ["error", "cut", 502, 429])
@pytest.mark.row("SDK 74", "SDK 80")
async def test_a_chat_that_meets_an_error_is_asked_again(fault):
    async with serving() as (_, address), OldController() as controller:
        controller.chat_faults = [fault, fault]
        await controller.start(address)
        _, graded = await controller.ended()
    assert graded.status == "success"
    assert len(controller.chats) == 1


@pytest.mark.parametrize(("fault", "text"), [("error", "the sampler broke with key [key]"), (400, "sampler is away")])
@pytest.mark.row("SDK 74", "SDK 80")
async def test_an_error_that_stays_ends_the_rollout_with_its_text_and_without_the_key(fault, text):
    async with serving() as (_, address), OldController() as controller:
        controller.chat_faults = [fault] * 10
        await controller.start(address)
        completion, graded = await controller.ended()
    assert (completion.status, completion.err_category) == ("failure", "agent_error")
    assert text in completion.err_message
    assert graded.status == "failure"
    assert len(controller.chat_faults) == (6 if fault == "error" else 9), "a 4xx is asked once, others 1 + 3 times"


@pytest.mark.parametrize(
    ("statuses", "calls"),
    [
        ({"completed": [500, 503]}, ["completed"] * 3 + ["grader"]),
        ({"grader": [500, 429, 500, 500]}, ["completed"] + ["grader"] * 5),
        ({"completed": [401]}, ["completed", "grader"]),
    ],
    ids=["completion-later", "grader-later", "completion-refused"],
)
@pytest.mark.row("SDK 69", "SDK 80")
async def test_a_callback_is_sent_again_until_it_is_answered_and_the_other_one_is_not(statuses, calls):
    async with serving() as (server, address), OldController() as controller:
        controller.statuses |= statuses
        await controller.start(address)
        await until(lambda: "r1" in controller.grades)
        await until(lambda: not server.engine.capacity().undelivered)
    assert [channel for channel, _ in controller.calls] == calls
    assert controller.stale == []


@pytest.mark.row("SDK 70", "SDK 80")
async def test_the_same_request_again_starts_nothing_and_another_one_is_refused():
    async with serving() as (_, address), OldController() as controller:
        controller.gate.clear()
        first = await controller.start(address)
        again = await controller.start(address)
        other = await controller.start(address, label="7")
        controller.gate.set()
        await controller.ended()
    assert (first, again) == ((200, {}), (200, {}))
    assert other[0] == 409
    assert "label" in other[1]["detail"]
    assert len(controller.chats) == 1


@pytest.mark.row("SDK 67", "SDK 68", "SDK 80")
async def test_health_has_the_concurrency_and_an_overload_is_refused():
    async with serving(max_concurrent=1, max_queued=1) as (_, address), OldController() as controller:
        controller.gate.clear()
        for number in range(2):
            assert (await controller.start(address, f"r{number}"))[0] == 200
        async with aiohttp.ClientSession(f"http://{address}") as session:
            async with session.post("/rollout", json=controller.body("r2")) as refused:
                assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
            async with session.get("/health") as got:
                health = await got.json()
        controller.gate.set()
        await controller.ended("r1")
    assert health["concurrency"] == {"max_concurrent": 1, "queued": 1, "running": 1}


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"rollout_id": ""}, "rollout_id"),
        ({"rollout_id": "a/b"}, "rollout_id"),
        ({"rollout_id": "é"}, "rollout_id"),
        ({"initial_messages": ...}, "initial_messages"),
        ({"initial_messages": [{"content": "no role"}]}, "initial_messages"),
        ({"chat_completions_url": "http://169.254.169.254/"}, "chat_completions_url"),
        ({"completion_callback_url": "http://169.254.169.254/"}, "completion_callback_url"),
        ({"grader_callback_url": "http://10.0.0.1/"}, "grader_callback_url"),
        ({"grader_callback_url": "ftp://x/"}, "grader_callback_url"),
        ({"completion_callback_url": ...}, "completion_callback_url"),
        ({"controller_api_key": "a\nb"}, "controller_api_key"),
        ({"completion_callback_url": ""}, "completion_callback_url"),
        ({"agent_timeout_sec": "soon"}, "agent_timeout_sec"),
        ({"agent_timeout_sec": "nan"}, "agent_timeout_sec"),
        ({"agent_timeout_sec": True}, "agent_timeout_sec"),
        ({"metadata": {"workflow_config": 3}}, "metadata"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.row("SDK 22", "SDK 80")
async def test_a_wrong_body_is_refused_with_the_name_of_its_field(more, field):
    async with serving() as (server, address), OldController() as controller:
        status, answer = await controller.start(address, **more)
        assert server.engine.capacity().completed == 0
    assert status == 422
    assert answer["detail"][0]["loc"][:2] == ["body", field]


@pytest.mark.row("SDK 42", "SDK 80")
async def test_a_sample_whose_name_no_header_can_carry_is_refused_clearly():
    async with serving() as (_, address), OldController() as controller:
        await controller.start(address, metadata={"samples": ["größer"]})
        completion, _ = await controller.ended()
    assert "x-sample-id" in completion.err_message
    assert "größer" in completion.err_message


@pytest.mark.row("SDK 75", "SDK 80")
async def test_a_server_with_a_token_refuses_others_and_loopback_needs_none():
    security = ServerSecurity(["secret"])
    async with serving(security=security) as (_, address), OldController() as controller:
        refused = [await controller.start(address, token=token) for token in ("", "wrong")]
        accepted = await controller.start(address, token="secret")
        await controller.ended()
    assert [status for status, _ in refused] == [401, 401]
    assert accepted == (200, {})


@pytest.mark.row("SDK 80")
async def test_a_callback_url_is_called_exactly_as_it_is():
    async with serving() as (_, address), OldController() as controller:
        await controller.start(address, completion_callback_url=f"{controller.url}/v1/rollout/completed?run=1&x=%2F")
        await controller.ended()
    assert controller.calls == [("completed", "r1"), ("grader", "r1")]


@pytest.mark.parametrize("more", [{"grader_timeout_sec": 150.0}, {}], ids=["limit", "no-limit"])
@pytest.mark.parametrize("standalone", [False, True], ids=["in-process", "standalone"])
@pytest.mark.row("SDK 80")
async def test_a_graders_limit_is_ignored_for_an_agent_without_a_grader(standalone, more):
    async with AsyncExitStack() as stack:
        server, address = await stack.enter_async_context(serving(Loop()))
        if standalone:
            http, _ = await stack.enter_async_context(serve_standalone(server.address, port=0, callback_port=0))
            address = http.address
        controller = await stack.enter_async_context(OldController(multiplies))
        controller.gate.clear()
        statuses = [await controller.start(address, **more) for _ in range(2)]
        other = await controller.start(address, label="7", **more)
        controller.gate.set()
        _, graded = await controller.ended()
    assert statuses == [(200, {})] * 2
    assert other[0] == 409
    assert graded.samples["main"].reward == 1.0


@pytest.mark.row("SDK 80")
async def test_another_refusal_beside_a_graders_limit_stays():
    async with serving(Loop()) as (_, address), OldController() as controller:
        status, answer = await controller.start(address, grader_timeout_sec=1.0, agent_loop="nobody")
    assert status == 404, answer


@pytest.mark.parametrize(
    "given",
    [{"agent_timeout_sec": "30", "grader_timeout_sec": "2.5"}, {"agent_timeout_sec": 30, "grader_timeout_sec": 2.5}],
    ids=["texts", "numbers"],
)
@pytest.mark.row("SDK S12", "SDK 80")
async def test_numbers_of_a_rollout_can_be_texts(given):
    async with serving() as (_, address), OldController() as controller:
        assert await controller.start(address, **given) == (200, {})
        completion, graded = await controller.ended()
        again = await controller.start(address, agent_timeout_sec=30.0, grader_timeout_sec=2.5)
    assert (completion.status, graded.status) == ("success", "success")
    assert again == (200, {}), "it is the same request"


@pytest.mark.parametrize(
    ("statuses", "calls"),
    [
        ({"grader": [500, 429, 500, 500, 500]}, ["completed"] + ["grader"] * 6),
        ({"completed": [500], "grader": [401]}, ["completed"] * 2 + ["grader"]),
    ],
    ids=["grader-later", "grader-refused"],
)
@pytest.mark.row("SDK 69", "SDK 80")
async def test_a_gateway_of_its_own_sends_an_answered_callback_once(statuses, calls):
    async with (
        AgentServer([workflow()], port=0, config=ServerConfig(**QUICK)) as server,
        serve_standalone(server.address, port=0, callback_port=0, settings=RolloutSettings(client=CLIENT)) as (http, _),
        OldController() as controller,
    ):
        controller.statuses |= statuses
        await controller.start(http.address)
        await until(lambda: len(controller.calls) >= len(calls) and not server.engine.capacity().undelivered)
    assert [channel for channel, _ in controller.calls] == calls
    assert controller.stale == []


@pytest.mark.row("SDK 80")
async def test_an_empty_grader_url_is_none():
    async with serving() as (server, address), OldController() as controller:
        await controller.start(address, metadata={"grader": "broken"}, grader_callback_url="")
        await until(lambda: "r1" in controller.completions and not server.engine.capacity().undelivered)
    assert controller.completions["r1"].status == "success"
    assert controller.calls == [("completed", "r1")]


@pytest.mark.row("SDK 80")
async def test_a_gateway_of_its_own_serves_callbacks_too():
    async with (
        AgentServer([workflow()], port=0, config=ServerConfig(**QUICK)) as server,
        serve_standalone(server.address, port=0, callback_port=0) as (http, _),
        OldController() as controller,
    ):
        status, answer = await controller.start(http.address)
        _, graded = await controller.ended()
        polled = await controller.start(
            http.address, "r2", completion_callback_url=None, grader_callback_url=None, controller_api_key=None
        )
    assert (status, answer) == (200, {})
    assert graded.samples["solver"].reward == 1.0
    assert polled[0] == 501, "a lease needs the engine"
    assert "osmosis-grpc serve -p PORT" in polled[1]["detail"]


@pytest.mark.row("SDK 71", "SDK 80")
async def test_a_cancelled_rollout_has_both_callbacks():
    async with serving() as (server, address), OldController() as controller, RolloutClient(server.address) as client:
        controller.gate.clear()
        await controller.start(address)
        await until(lambda: controller.waiting)
        await client.cancel("r1")
        completion, graded = await controller.ended()
    assert (completion.status, graded.status) == ("failure", "failure")
    assert "CANCELLED" in completion.err_message
