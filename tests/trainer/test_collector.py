"""A trainer's metrics for Prometheus: the same as metrics(), by family, with bounded labels."""

import asyncio
import sys
import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import MissingExtraError, PermissionDenied
from osmosis_grpc.protocol.types import Failure, OutcomeStatus, RolloutOutcome
from osmosis_grpc.trainer.metrics import Metrics
from tests.observability.agents import Mixed, policy, request, run_all
from tests.observability.scrape import Page, scrape

NAME = "osmosis_trainer_{}".format


def registered(collector):
    """The page of an application that registers a collector."""
    registry = CollectorRegistry()
    registry.register(collector)
    return Page(generate_latest(registry).decode())


async def test_values_are_right_after_known_rollouts(serve, attach_to):
    def failing(asked):
        if asked.rollout_id.startswith("unanswered"):
            raise PermissionDenied("no GPU")
        return answer(asked, "fine", tokens=3)

    trainer = await attach_to(failing, await serve(Mixed()))
    trainer.resume(version=7)
    await run_all(
        trainer,
        [
            *(request(f"ok-{n}", label=str(n)) for n in range(4)),
            request("raises-1"),
            request("unanswered-1"),
            request("hangs-1", agent_timeout=0.3),
            request("nobody-1", agent_loop="nobody"),
        ],
    )
    await trainer.evaluate([request("ok-e", label="9")])
    page, values = registered(trainer.collector()), trainer.metrics()
    for status, count in (("COMPLETED", 4), ("FAILED", 3), ("CANCELLED", 0), ("DEADLINE_EXCEEDED", 1)):
        assert page.value(NAME("rollouts_total"), status=status, evaluation="false") == count
        assert values[f"rollouts/{status.lower()}"] == count
    assert page.value(NAME("rollouts_total"), status="COMPLETED", evaluation="true") == 1
    failures = (
        ("agent", "AGENT_EXCEPTION"),
        ("trainer", "CHAT_REFUSED"),
        ("agent", "AGENT_TIMEOUT"),
        ("refused", "NotFound"),
    )
    for boundary, reason in failures:
        assert page.value(NAME("failures_total"), boundary=boundary, reason=reason, evaluation="false") == 1
    assert page.value(NAME("reward_mean"), evaluation="false") == values["reward/mean"] == 1.5
    assert page.value(NAME("reward_mean"), evaluation="true") == 9
    assert page.value(NAME("chats_total"), result="answered") == values["chats/answered"] == 7
    assert page.value(NAME("chats_total"), result="failed") == values["chats/failed"] == 1
    assert page.value(NAME("tokens_total"), kind="sampled") == values["tokens/sampled"] == 21
    assert page.value(NAME("policy_version")) == 7
    assert page.value(NAME("policy_lag_max"), evaluation="false") == 0
    assert page.value(NAME("rollouts_open")) == page.value(NAME("chats_open")) == 0
    assert page.value(NAME("rollout_duration_seconds_count"), evaluation="false") == 7
    assert page.value(NAME("rollout_duration_seconds_count"), evaluation="true") == 1
    assert page.value(NAME("chat_duration_seconds_count")) == 7
    attach = "osmosis.rollout.v1.RolloutService/Attach"
    assert page.value("grpc_client_attempt_started_total", grpc_method=attach) == 1


async def test_unique_ids_and_labels_add_no_series(serve, attach_to):
    trainer = await attach_to(policy, await serve(Mixed()))
    kinds = ("ok", "odd", "raises", "tool")
    await run_all(trainer, [request(f"{kind}-warm", label="1") for kind in kinds])
    before = scrape(trainer.source)
    await run_all(trainer, [request(f"{kinds[n % 4]}-{n}", label=str(n)) for n in range(200)])
    after = scrape(trainer.source)
    assert after.series() == before.series()
    assert after.value(NAME("rollouts_total"), status="COMPLETED", evaluation="false") == 102
    assert "warm" not in after.text


def test_reasons_that_agents_make_up_are_one():
    metrics = Metrics()
    for number in range(1000):
        failure = Failure("agent", "no")
        metrics.ended(
            RolloutOutcome(
                rollout_id="r", status=OutcomeStatus.FAILED, failure=failure, finish_reason=f"made up {number}"
            ),
            "",
        )

    def flat():
        return metrics.read(open_rollouts=0, open_chats=0, version="")

    from osmosis_grpc.trainer.metrics import TrainerMetrics

    page = scrape(TrainerMetrics(metrics, flat, {}))
    counted = {key: value for key, value in page.samples.items() if key[0] == NAME("failures_total")}
    assert sum(counted.values()) == 1000
    assert page.labels(NAME("failures_total"), "reason") == {"other"}


async def test_any_thread_may_collect(serve, attach_to):
    """prometheus_client's own server collects on threads."""
    trainer = await attach_to(policy, await serve(Mixed()))
    collector, stop, failed = trainer.collector(), threading.Event(), []

    def collect():
        while not stop.is_set():
            try:
                registered(collector)
            except BaseException as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=collect) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        await run_all(trainer, [request(f"raises-{n}" if n % 3 else f"ok-{n}", label="1") for n in range(40)])
    finally:
        stop.set()
        await asyncio.to_thread(lambda: [thread.join() for thread in threads])
    assert not failed


async def test_without_the_library_the_error_names_the_extra(serve, attach_to, monkeypatch):
    trainer = await attach_to(policy, await serve(Mixed()))
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "osmosis_grpc.observability.exposition")
    with pytest.raises(MissingExtraError, match="needs the extra 'server'"):
        trainer.collector()
    assert trainer.metrics()["rollouts/completed"] == 0.0, "metrics() needs no library"
