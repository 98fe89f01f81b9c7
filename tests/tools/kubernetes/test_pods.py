"""ARL row 50: a pod for each rollout, its limits, faults of the API, and the clean-up, against a fake API server."""

import asyncio
import logging
import signal
import sys
import textwrap

import pytest

from osmosis_grpc.tools.kubernetes import KubernetesConfig
from osmosis_grpc.tools.sandbox import Protection, SandboxError, SandboxRefused
from tests.tools.kubernetes.api_server import TOKEN, status
from tests.waiting import until

pytestmark = pytest.mark.adapters


def failing(call, *answers):
    """Faults that replace the first answers to a kind of call."""
    left = list(answers)
    return lambda made: left.pop(0) if made == call and left else None


@pytest.mark.row("ARL 50")
async def test_each_rollout_has_a_pod_of_its_own(api, cluster):
    async with cluster() as made:

        async def one(number):
            async with made.sandbox(f"rollout-{number}") as box:
                await box.write_file("name", str(number).encode())
                await gate.wait()
                return box.name, (await box.run("cat name; ls")).stdout

        gate = asyncio.Event()
        running = [asyncio.ensure_future(one(number)) for number in range(10)]
        await until(lambda: len(api.exec_arguments) == 10)
        rollouts = {pod.body["metadata"]["annotations"]["osmosis-grpc/rollout"] for pod in api.pods.values()}
        gate.set()
        ended = await asyncio.gather(*running)
    assert rollouts == {f"rollout-{number}" for number in range(10)}
    assert len({pod for pod, _ in ended}) == 10
    assert [out for _, out in ended] == [f"{number}name\n".encode() for number in range(10)]
    assert not api.pods


@pytest.mark.row("ARL 50")
async def test_the_manifest_limits_the_pod(api, cluster):
    async with cluster(cpu="2", lifetime=600.0, pod={"runtimeClassName": "gvisor"}) as made, made.sandbox() as box:
        pod = api.pods[box.name].body
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    assert spec["activeDeadlineSeconds"] == 600
    assert spec["automountServiceAccountToken"] is False
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "1Gi"}
    assert pod["metadata"]["labels"] == {"osmosis-grpc/server": "server-1", "osmosis-grpc/process": made.process}
    assert TOKEN not in str(pod)


@pytest.mark.row("ARL 50")
async def test_a_missing_protection_is_refused_before_a_pod_is_made(api, cluster):
    async with cluster() as made:
        with pytest.raises(SandboxRefused, match=r"network.*operator_provides"):
            async with made.sandbox(require=["network"]):
                pass
    assert "POST pods" not in api.calls
    async with cluster(operator_provides=["network", "limits"]) as made, made.sandbox(require=list(Protection)) as box:
        assert box.isolation.protections == frozenset(Protection)


CONFLICT = ("Conflict", "the quota has changed")


@pytest.mark.parametrize(
    "answer", [(429, "TooManyRequests", "slow down"), (500, "InternalError", "etcd"), (503, "x", "x"), (409, *CONFLICT)]
)
@pytest.mark.row("ARL 50")
async def test_passing_errors_of_the_api_are_retried_within_bounds(api, cluster, answer):
    async with cluster(attempts=3) as made:
        api.faults = failing("POST pods", status(*answer), status(*answer))
        async with made.sandbox() as box:
            assert (await box.run("echo x")).stdout == b"x\n"
        assert api.calls.count("POST pods") == 3
        api.faults = lambda call: status(*answer) if call == "POST pods" else None
        with pytest.raises(SandboxError, match=f"failed after 3 tries: {answer[0]} {answer[2]}"):
            async with made.sandbox():
                pass
        assert api.calls.count("POST pods") == 6
    assert not api.pods


@pytest.mark.row("ARL 50")
async def test_other_errors_of_the_api_are_not_retried(api, cluster):
    async with cluster() as made:
        api.faults = lambda call: status(403, "Forbidden", "no pods for you") if call == "POST pods" else None
        with pytest.raises(SandboxError, match="failed after 1 try: 403 no pods for you"):
            async with made.sandbox():
                pass
    assert api.calls.count("POST pods") == 1


@pytest.mark.row("ARL 50")
async def test_a_pod_whose_creation_got_no_answer_is_not_made_twice(api, cluster):
    async with cluster() as made:
        api.faults = failing("POST pods", "lost")
        async with made.sandbox() as box:
            assert list(api.pods) == [box.name]
    assert api.calls.count("POST pods") == 2
    assert not api.pods


@pytest.mark.parametrize("call", ["GET pod", "GET exec", "DELETE pod", "GET pods"])
@pytest.mark.row("ARL 50")
async def test_a_lost_answer_of_any_other_call_changes_nothing(api, cluster, call):
    api.faults = failing(call, status(500, "InternalError", "etcd"), status(429, "x", "x", Retry_After="0"))
    async with cluster() as made, made.sandbox() as box:
        assert (await box.run("echo x")).stdout == b"x\n"
    assert not api.pods


@pytest.mark.parametrize(
    ("reason", "text", "limit"),
    [
        ("ImagePullBackOff", "cannot run: ImagePullBackOff: no such image", 60.0),
        ("ContainerCreating", "ready_within: .* does not run after 1 s: ContainerCreating", 1.0),
    ],
)
@pytest.mark.row("ARL 50")
async def test_a_pod_that_never_runs_is_an_error_and_is_deleted(api, cluster, reason, text, limit):
    api.waiting = {"reason": reason, "message": "no such image"}
    async with cluster(ready_within=limit) as made:
        with pytest.raises(SandboxError, match=text):
            async with made.sandbox():
                pass
        assert not api.pods


@pytest.mark.row("ARL 50")
async def test_a_cancelled_start_deletes_the_pod(api, cluster):
    api.waiting = {"reason": "ContainerCreating"}
    async with cluster() as made:
        starting = asyncio.ensure_future(made.sandbox().__aenter__())
        await until(lambda: api.pods)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not api.pods


@pytest.mark.row("ARL 50")
async def test_a_broken_stream_is_an_error_and_its_program_is_killed(api, box):
    api.break_after = 100_000
    with pytest.raises(SandboxError, match=r"the stream to the container .*; the program was killed"):
        await box.run("head -c 300000 /dev/zero; sleep 4711")
    api.break_after = None
    await api.left(box.name)
    assert (await box.run("echo on")).stdout == b"on\n"


@pytest.mark.row("ARL 50")
async def test_a_pod_that_the_node_ends_is_named(api, box):
    running = asyncio.ensure_future(box.run("sleep 4711"))
    await until(lambda: "sleep 4711 " in api.processes(box.name))
    await api.end(box.name, "Evicted")
    [ended] = await asyncio.gather(running, return_exceptions=True)
    assert "Evicted" in str(ended) if isinstance(ended, SandboxError) else ended.exit_code == 137
    with pytest.raises(SandboxError, match="400"):
        await box.run("true")


@pytest.mark.row("ARL 50")
async def test_the_cluster_ends_a_pod_after_its_lifetime(api, cluster):
    async with cluster(lifetime=1.0) as made, made.sandbox() as box:
        ended = await asyncio.gather(box.run("sleep 4711"), return_exceptions=True)
        assert isinstance(ended[0], SandboxError) or ended[0].exit_code == 137
        await until(lambda: api.pods[box.name].body["status"].get("reason") == "DeadlineExceeded")
        assert not api.processes(box.name)


@pytest.mark.row("ARL 50")
async def test_a_program_that_cannot_be_killed_loses_its_pod(api, box):
    running = asyncio.ensure_future(box.run("sleep 4711", seconds=1.0))
    await until(lambda: "sleep 4711 " in api.processes(box.name))
    api.faults = lambda call: status(403, "Forbidden", "no exec") if call == "GET exec" else None
    ended = await running
    assert ended.timed_out
    assert not api.pods
    with pytest.raises(SandboxError, match="the sandbox is closed"):
        await box.run("true")


CHILD = """
import asyncio, sys
from pathlib import Path
from osmosis_grpc.tools.kubernetes import KubernetesCluster, KubernetesConfig

async def main():
    async def one():
        async with cluster.sandbox() as box:
            await box.run("sleep 4711", seconds=float(sys.argv[2]))

    config = KubernetesConfig(server_id="server-1", image="x", kubeconfig=Path(sys.argv[1]))
    async with KubernetesCluster(config) as cluster:
        await asyncio.gather(*(one() for _ in range(int(sys.argv[3]))))

asyncio.run(main())
"""


async def killed_server(api, tmp_path, seconds, count=1):
    """Run a server that starts a program in each of its pods, and SIGKILL the server. Returns the pods' names."""
    program = tmp_path / "server.py"
    program.write_text(textwrap.dedent(CHILD))
    arguments = [sys.executable, str(program), str(api.kubeconfig(tmp_path)), str(seconds), str(count)]
    server = await asyncio.create_subprocess_exec(*arguments)
    try:
        pods = await until(lambda: len(api.pods) == count and list(api.pods))
        await until(lambda: all("sleep 4711 " in api.processes(pod) for pod in pods))
    finally:
        server.send_signal(signal.SIGKILL)
        await server.wait()
    assert all("sleep 4711 " in api.processes(pod) for pod in pods)
    return pods


@pytest.mark.row("ARL 50")
async def test_the_next_process_of_a_killed_server_removes_its_pods(api, cluster, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    pods = await killed_server(api, tmp_path, 600, 20)
    async with cluster(server_id="server-2"):
        assert list(api.pods) == pods
    async with cluster():
        assert not api.pods
    assert all(pod in caplog.text for pod in pods)
    assert TOKEN not in caplog.text


@pytest.mark.row("ARL 50")
async def test_a_program_of_a_killed_server_ends_after_its_time_limit(api, tmp_path):
    [pod] = await killed_server(api, tmp_path, 2)
    await until(lambda: not api.processes(pod), timeout=100)  # five seconds after the limit
    assert pod in api.pods


@pytest.mark.row("ARL 50")
async def test_a_pod_that_could_not_be_deleted_is_deleted_later(api, cluster):
    async with cluster(attempts=1) as made:
        api.faults = failing("DELETE pod", status(500, "InternalError", "etcd"))
        async with made.sandbox() as box:
            pass
        assert box.name in api.pods
        await made.clean_up()
        assert not api.pods


@pytest.mark.row("ARL 50")
async def test_a_cluster_that_cannot_be_used_is_an_error_without_its_token(api, cluster, tmp_path):
    with pytest.raises(SandboxError, match="kubeconfig: cannot be used"):
        async with cluster(kubeconfig=tmp_path / "none"):
            pass
    config, good = tmp_path / "another", api.kubeconfig(tmp_path).read_text()
    config.write_text(good.replace(TOKEN, "another-canary"))
    with pytest.raises(SandboxError, match="401 Unauthorized") as raised:
        async with cluster(kubeconfig=config):
            pass
    assert "canary" not in str(raised.value)
    config.write_text(good.replace(api.url, "http://127.0.0.1:9"))
    with pytest.raises(SandboxError, match="after 2 tries: ClientConnector"):
        async with cluster(kubeconfig=config, attempts=2):
            pass


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("server_id", ""),
        ("server_id", "a b"),
        ("server_id", "x" * 64),
        ("folder", "work"),
        ("folder", "/"),
        ("user", 0),
        ("lifetime", 0.0),
        ("attempts", 0),
        ("pod", {"containers": []}),
    ],
)
@pytest.mark.row("ARL 50")
def test_a_wrong_option_is_named(field, value):
    with pytest.raises(ValueError, match=f"^{field}: "):
        KubernetesConfig(**{"server_id": "s", "image": "x"} | {field: value})
