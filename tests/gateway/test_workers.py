"""The HTTP port of worker 0 answers for all workers."""

import asyncio
from contextlib import AsyncExitStack

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.types import RolloutState
from osmosis_grpc.server import ServerSecurity
from tests.callback_trainer import CallbackTrainer
from tests.server.workers.cluster import workers
from tests.server.workers.test_routing import ADMIN, IDS, MINE, QUESTION, YOURS, Waiter
from tests.waiting import until

LEASE = "x-osmosis-rollout-lease"


@pytest.fixture
async def served():
    """Three workers with tokens, twelve leased rollouts of the first token, and a client of each token."""
    agent = Waiter()
    security = ServerSecurity([f"mine={MINE}", f"yours={YOURS}"], admin_tokens=ADMIN)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(workers([agent], security=security, http=True))
        clients = {
            token: await stack.enter_async_context(
                httpx.AsyncClient(base_url=cluster.http, headers={"authorization": f"Bearer {token}"}, timeout=60)
            )
            for token in (MINE, YOURS, ADMIN)
        }
        leases = {}
        for name in IDS:
            answer = await clients[MINE].post("/rollout", json=lease_body(name))
            assert answer.status_code == 202, answer.text
            leases[name] = {LEASE: answer.json()["polling_lease_token"]}
        await until(lambda: sum(server.engine.capacity().running for server in cluster.servers) == len(IDS))
        assert len({cluster.holders(name)[0] for name in IDS}) == 3
        yield agent, cluster, clients, leases


def lease_body(name):
    return {"initial_messages": [], "chat_completions_url": "http://127.0.0.1:9", "rollout_id": name}


async def test_a_lease_is_answered_by_the_worker_that_has_the_rollout(served):
    agent, _, clients, leases = served
    mine, yours = clients[MINE], clients[YOURS]
    for name in IDS:
        assert (await mine.post("/rollout", json=lease_body(name))).status_code == 409
        assert (await yours.post("/rollout", json=lease_body(name))).status_code == 409
        assert (await mine.get(f"/rollout/{name}/status")).json()["status"] == "running"
        assert (await yours.get(f"/rollout/{name}/status")).json()["status"] == "unknown"
        assert (await yours.get(f"/rollout/{name}/result", headers=leases[name])).status_code == 404
        assert (await mine.get(f"/rollout/{name}/result", headers={LEASE: "wrong"})).status_code == 403
    polls = [asyncio.ensure_future(mine.get(f"/rollout/{name}/result", headers=leases[name])) for name in IDS]
    agent.go.set()
    for name, poll in zip(IDS, polls, strict=True):
        answer = (await poll).json()
        assert answer["rollout_id"] == name
        assert answer["status"] not in ("queued", "running")
    assert (await mine.post("/rollout", content=b"{")).status_code == 415
    broken = await mine.post("/rollout", content=b"{", headers={"content-type": "application/json"})
    assert broken.status_code == 422


async def test_a_cancel_over_http_reaches_all_workers(served):
    _, cluster, clients, _ = served
    none = (await clients[YOURS].post("/rollout/cancel", json={"all": True})).json()
    assert none == {"dispositions": {}}
    some = (await clients[MINE].post("/rollout/cancel", json={"ids": ["r1", "unknown"]})).json()
    assert some == {"dispositions": {"r1": "cancelled_running", "unknown": "not_found"}}
    rest = (await clients[MINE].post("/rollout/cancel", json={"prefix": "r"})).json()["dispositions"]
    assert rest == dict.fromkeys((name for name in IDS if name != "r1"), "cancelled_running")
    async with cluster.client(2, token=MINE) as client:
        assert {row.state async for row in client.rollouts()} == {RolloutState.CANCELLED}


async def test_health_and_a_drain_are_those_of_all_workers(served):
    _, cluster, clients, _ = served
    health = (await clients[MINE].get("/health")).json()
    assert (health["active_rollouts"], health["concurrency"]["max_concurrent"]) == (len(IDS), 300)
    assert (await clients[MINE].post("/drain", json={"timeout_sec": 0})).status_code == 403
    drained = (await clients[ADMIN].post("/drain", json={"timeout_sec": 0})).json()
    assert (drained["active_rollouts"], drained["drained"]) == (len(IDS), False)
    assert all(server.engine.shutdown.draining for server in cluster.servers)
    assert (await clients[MINE].get("/health")).json()["status"] == "draining"
    await cluster.stop(1)
    away = await clients[ADMIN].post("/drain", json={"timeout_sec": 0})
    assert (away.status_code, away.headers["retry-after"]) == (503, "1")
    assert "worker 1 of this server" in away.json()["detail"]


async def test_one_scrape_has_the_metrics_of_all_workers(served):
    _, cluster, clients, _ = served

    async def samples(accept=""):
        page = await clients[MINE].get("/metrics", headers={"accept": accept})
        assert page.status_code == 200
        return page, {family.name: family for family in text_string_to_metric_families(page.text)}

    page, families = await samples()
    running = {each.labels["worker"]: each.value for each in families["osmosis_rollouts_running"].samples}
    assert running == {
        str(worker): float(server.engine.capacity().running) for worker, server in enumerate(cluster.servers)
    }
    assert page.text.count("# TYPE osmosis_rollouts_running ") == 1
    assert all("worker" in each.labels for family in families.values() for each in family.samples)
    page, _ = await samples("application/openmetrics-text; version=1.0.0")
    assert page.headers["content-type"].startswith("application/openmetrics-text")
    assert page.text.endswith("# EOF\n")
    await cluster.stop(2)
    _, families = await samples()
    assert [each.value for each in families["osmosis_worker_up"].samples] == [1, 1, 0]


async def test_callbacks_over_http_start_through_worker_0_and_are_known_over_grpc():
    """An Init of the old contract: its worker is chosen by its id, and its result goes to its own URL."""
    agent = Waiter()
    async with workers([agent], http=True) as cluster, httpx.AsyncClient(base_url=cluster.http, timeout=60) as http:
        for name in IDS:
            body = {
                "rollout_id": name,
                "server_url": "http://127.0.0.1:9",
                "messages": QUESTION,
                "completion_params": {},
            }
            for _ in range(2):
                answer = await http.post("/v1/rollout/init", json=body)
                assert answer.status_code == 202, answer.text
            async with CallbackTrainer(EchoPolicy()) as trainer, cluster.client(1) as client:
                with pytest.raises(Exception, match="started with another spec"):
                    await client.init(rollout_id=name, messages=[], callback=trainer.callback())
        assert len({cluster.holders(name)[0] for name in IDS}) == 3
        assert sum(len(cluster.holders(name)) for name in IDS) == len(IDS)
