"""The polling lease of 0.3.x: our server, and a trainer that asks for its results."""

import asyncio

import pytest
from starlette.testclient import TestClient

from osmosis_gateway.app import create_app
from osmosis_gateway.leases import LeaseTimes
from osmosis_grpc.network.server_security import ServerSecurity
from tests.legacy.old_controller import answer
from tests.legacy.polling_client import ENDED, Admission, PollingClient, Refused
from tests.legacy.test_controllers import multiplies, serving, workflow
from tests.legacy.workflows import Loop
from tests.waiting import until

SHORT = LeaseTimes(wait=0.05, lease=0.4)


@pytest.mark.parametrize("agent", [Loop, workflow], ids=["agent-loop", "workflow"])
@pytest.mark.row("SDK S15")
async def test_a_trainer_asks_for_its_result(agent):
    model = multiplies if agent is Loop else answer
    async with serving(agent()) as (server, address), PollingClient(model) as client:
        admission = await client.admit(address)
        result = await client.result(address, admission)
        await until(lambda: not server.engine.capacity().undelivered)
        again = await client.result(address, admission)
        status = await client.call(address, "GET", "/rollout/r1/status")
    assert (admission.result_wait_timeout_sec, admission.polling_lease_timeout_sec) == (30.0, 120.0)
    assert (result.status, result.err_message, result.sample.reward, result.sample.label) == ("success", None, 1.0, "6")
    roles = ["user", "assistant", "tool", "assistant"] if agent is Loop else ["user", "assistant"]
    assert [message["role"] for message in result.sample.messages] == roles
    assert again == result, "the result is kept"
    assert status == {"rollout_id": "r1", "status": "success", "reward": 1.0}


@pytest.mark.row("SDK S15")
async def test_a_poll_of_an_unfinished_rollout_has_its_status():
    async with serving(max_concurrent=1, lease_times=SHORT) as (_, address), PollingClient() as client:
        client.gate.clear()
        first, second = await client.admit(address, "r1"), await client.admit(address, "r2")
        await until(lambda: client.waiting)
        assert [(await client.poll(address, one)).status for one in (first, second)] == ["running", "queued"]
        assert (await client.call(address, "GET", "/rollout/r2/status")) == {"rollout_id": "r2", "status": "queued"}
        client.gate.set()
        assert {(await client.result(address, one)).status for one in (first, second)} == {"success"}
        graded = await client.admit(address, "r3", metadata={"grader": "slow"}, grader_timeout_sec=0.3)
        await until(lambda: _is(client, address, graded, "grading"))
        assert (await client.result(address, graded)).err_category == "timeout"


async def _is(client, address, admission, status):
    return (await client.poll(address, admission)).status == status


@pytest.mark.row("SDK S15")
async def test_a_poll_is_answered_at_each_change_of_the_status():
    async with serving(max_concurrent=1) as (_, address), PollingClient() as client:
        client.gate.clear()
        await client.admit(address, "r0")
        await until(lambda: client.waiting)
        admission = await client.admit(address, metadata={"grader": "slow"}, grader_timeout_sec=0.3)
        seen = []
        while not seen or seen[-1] not in ENDED:
            poll = asyncio.create_task(client.poll(address, admission))
            await asyncio.wait({poll}, timeout=0.05)
            if not seen:
                assert not poll.done()
            client.gate.set()
            seen.append((await poll).status)
    assert seen == ["running", "grading", "failure"]


@pytest.mark.row("SDK S15")
async def test_unknown_rollouts_wrong_leases_and_used_ids_are_refused():
    async with serving() as (_, address), PollingClient() as client:
        admission = await client.admit(address)
        for path, lease, status in (("r1", "wrong", 403), ("unknown", "any", 404), ("r1", "", 422)):
            with pytest.raises(Refused, match=f"{status}"):
                headers = {"X_Osmosis_Rollout_Lease": lease} if lease else {}
                await client.call(address, "GET", f"/rollout/{path}/result", **headers)
        for more in ({}, {"label": "7"}):
            with pytest.raises(Refused, match="409"):
                await client.admit(address, **more)
        assert (await client.result(address, admission)).status == "success"
        with pytest.raises(Refused, match="409"):
            await client.admit(address)
        minted = await client.run(address, None, chat_completions_url=f"{client.url}/v1/rollouts/x")
        with pytest.raises(Refused, match="404"):
            await client.start(address, "called", completion_callback_url=f"{client.url}/v1/rollout/completed")
            await client.call(address, "GET", "/rollout/called/result", X_Osmosis_Rollout_Lease="any")
    assert len(minted.rollout_id) == 32


@pytest.mark.row("SDK S15")
async def test_of_equal_requests_at_once_only_one_is_admitted():
    async with serving() as (_, address), PollingClient() as client:
        got = await asyncio.gather(*(client.admit(address) for _ in range(8)), return_exceptions=True)
        admitted = [one for one in got if isinstance(one, Admission)]
        assert (await client.result(address, *admitted)).status == "success"
    assert len(admitted) == 1
    assert {one.status for one in got if isinstance(one, Refused)} == {409}


@pytest.mark.row("SDK S15")
async def test_a_lease_that_is_not_renewed_ends_the_rollout():
    async with serving(lease_times=SHORT) as (server, address), PollingClient() as client:
        client.gate.clear()
        kept, left = await client.admit(address, "kept"), await client.admit(address, "left")
        polls = asyncio.create_task(client.result(address, kept))
        await until(lambda: server.engine.capacity().completed)
        result = await client.result(address, left)
        client.gate.set()
        assert (await polls).status == "success"
    assert (result.status, result.err_message, result.err_category) == (
        "failure",
        "polling lease expired",
        "lease_expired",
    )


@pytest.mark.row("SDK S15")
async def test_a_result_that_nobody_asks_for_is_given_up():
    times = LeaseTimes(wait=0.05, lease=60.0, keep=0.2)
    async with serving(lease_times=times) as (server, address), PollingClient() as client:
        admission = await client.admit(address)
        await until(lambda: server.engine.capacity().completed)
        await until(lambda: not server.engine.capacity().undelivered)
        assert (await client.result(address, admission)).status == "success", "it is kept as long as the record"


@pytest.mark.parametrize(
    ("more", "category", "text"),
    [
        ({"metadata": {"raise": "RuntimeError"}}, "agent_error", "the agent broke"),
        ({"metadata": {"sleep": 60}, "agent_timeout_sec": 0.2}, "timeout", "agent_timeout"),
        ({"metadata": {"grader": "broken"}}, "agent_error", "the grader broke"),
        ({"metadata": {"samples": ["a", "b"]}}, "validation_error", "one sample"),
        ({"label": None}, "validation_error", "no label"),
    ],
    ids=["agent", "deadline", "grader", "samples", "ungraded"],
)
@pytest.mark.row("SDK S15")
async def test_each_failure_has_a_category_and_a_text(more, category, text):
    async with serving() as (_, address), PollingClient() as client:
        result = await client.run(address, **more)
    assert (result.status, result.err_category) == ("failure", category)
    assert text in result.err_message
    assert result.sample is None or result.sample.reward is None


@pytest.mark.row("SDK S15")
async def test_without_a_grade_the_grader_does_not_run():
    async with serving() as (_, address), PollingClient() as client:
        result = await client.run(address, grade=False, metadata={"grader": "broken"}, grader_timeout_sec=1.0)
    assert (result.status, result.sample.reward) == ("success", None)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"llm_api_key": ""}, "llm_api_key"),
        ({"rollout_id": ".."}, "rollout_id"),
        ({"rollout_id": ""}, "rollout_id"),
        ({"controller_api_key": "k"}, "completion_callback_url"),
        ({"chat_completions_url": "http://169.254.169.254/"}, "chat_completions_url"),
        ({"grade": 3}, "grade"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.row("SDK S15")
async def test_a_wrong_body_is_refused_with_the_name_of_its_field(more, field):
    async with serving() as (_, address), PollingClient() as client:
        with pytest.raises(Refused) as refused:
            await client.admit(address, **more)
    assert refused.value.status == 422
    assert refused.value.body["detail"][0]["loc"] == ["body", field]


@pytest.mark.row("SDK 71", "SDK S15")
async def test_cancel_takes_ids_a_prefix_or_all():
    async with serving(max_concurrent=2) as (server, address), PollingClient() as client:
        client.gate.clear()
        rows = {name: await client.admit(address, name) for name in ("a-1", "b-1", "a-2", "b-2", "c")}
        await until(lambda: client.waiting == 2)

        async def cancel(**body):
            return (await client.call(address, "POST", "/rollout/cancel", body))["dispositions"]

        by_id = await cancel(ids=["a-1", "b-2", "unknown"])
        assert by_id == {"a-1": "cancelled_running", "b-2": "cancelled_queued", "unknown": "not_found"}
        by_prefix = await cancel(prefix="a-")
        assert by_prefix.keys() >= {"a-2"}
        assert set(by_prefix) <= {"a-1", "a-2"}
        everything = await cancel(all=True)
        assert everything.keys() >= {"b-1", "c"}
        results = [await client.result(address, row) for row in rows.values()]
        assert await cancel(all=True) == {}
        assert await cancel(ids=["a-1"]) == {"a-1": "not_found"}
        for wrong in ({}, {"ids": ["a"], "all": True}, {"prefix": "a", "ids": []}):
            with pytest.raises(Refused, match="422"):
                await cancel(**wrong)
        assert server.engine.capacity().running == 0
    assert {(result.status, result.err_message) for result in results} == {("cancelled", "cancelled")}
    assert all(body["messages"] for _, _, body in client.chats)


@pytest.mark.row("SDK 72", "SDK S15")
async def test_an_unknown_rollout_has_the_status_unknown():
    async with serving() as (_, address), PollingClient() as client:
        assert (await client.call(address, "GET", "/rollout/no/status")) == {"rollout_id": "no", "status": "unknown"}


@pytest.mark.row("SDK 76", "SDK S15")
async def test_a_drain_refuses_new_rollouts_and_lets_the_others_end():
    async with serving() as (server, address), PollingClient() as client:
        client.gate.clear()
        admission = await client.admit(address)
        before = await client.call(address, "GET", "/health")
        left = await client.call(address, "POST", "/drain", {"timeout_sec": 0.1})
        with pytest.raises(Refused, match="503"):
            await client.admit(address, "r2")
        client.gate.set()
        result = await client.result(address, admission)
        drained = await client.call(address, "POST", "/drain", {"timeout_sec": 20})
        health = await client.call(address, "GET", "/health")
        with pytest.raises(Refused, match="422"):
            await client.call(address, "POST", "/drain", {"timeout_sec": 301})
        assert server.engine.shutdown.draining
    identity = {name: before[name] for name in ("instance_id", "process_id")}
    assert all(identity.values())
    assert before["lifecycle"] == {"accepting_rollouts": True, "active_rollouts": 1}
    common = identity | {"accepting_rollouts": False, "rollout_ids": ["r1"]}
    assert left == common | {"active_rollouts": 1, "drained": False}
    assert drained == common | {"active_rollouts": 0, "drained": True}
    assert result.status == "success"
    assert health["lifecycle"] == {"accepting_rollouts": False, "active_rollouts": 0}
    assert {name: health[name] for name in identity} == identity


@pytest.mark.row("SDK 75", "SDK S15")
async def test_every_route_needs_the_token_and_a_drain_an_administrator():
    security = ServerSecurity(["one=first", "two=second"], admin_tokens=["admin"])
    async with (
        serving(security=security) as (_, address),
        PollingClient() as nobody,
        PollingClient(token="first") as one,
        PollingClient(token="second") as two,
        PollingClient(token="admin") as admin,
    ):
        for method, path in (
            ("POST", "/rollout"),
            ("GET", "/rollout/r1/result"),
            ("GET", "/rollout/r1/status"),
            ("POST", "/rollout/cancel"),
            ("POST", "/drain"),
        ):
            with pytest.raises(Refused, match="401"):
                await nobody.call(address, method, path, {} if method == "POST" else None)
        admission = await one.admit(address)
        with pytest.raises(Refused, match="404"):
            await two.poll(address, admission)
        assert (await two.call(address, "GET", "/rollout/r1/status"))["status"] == "unknown"
        cancelled = await two.call(address, "POST", "/rollout/cancel", {"ids": ["r1"]})
        assert cancelled == {"dispositions": {"r1": "not_found"}}
        assert (await one.result(address, admission)).status == "success"
        with pytest.raises(Refused, match="403"):
            await one.call(address, "POST", "/drain", {})
        assert (await admin.call(address, "POST", "/drain", {}))["drained"]


@pytest.mark.row("SDK S15")
def test_an_application_in_a_test_client_has_leases():
    body = {"rollout_id": "r1", "initial_messages": [], "chat_completions_url": "http://localhost:8080", "label": "6"}
    app = create_app(Loop())
    with TestClient(app) as client:
        admission = client.post("/rollout", json=body)
        assert (admission.status_code, admission.json()["status"]) == (202, "queued")
        assert client.post("/rollout/cancel", json={"prefix": "r"}).json() == {
            "dispositions": {"r1": "cancelled_running"}
        }
        lease = {"X-Osmosis-Rollout-Lease": admission.json()["polling_lease_token"]}
        assert client.get("/rollout/r1/result", headers=lease).json()["status"] == "cancelled"
        assert client.post("/drain", json={"timeout_sec": 1}).json()["drained"] is True
    assert TestClient(create_app(Loop())).post("/rollout", json=body).status_code == 503
