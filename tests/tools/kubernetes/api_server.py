"""A fake of a Kubernetes API server on a real socket. It speaks the HTTP and WebSocket wire of pods; it is no cluster.

It creates, reads, lists and deletes pods, and runs the commands of an exec as real processes in bubblewrap,
where real folders are the volumes. All processes of a pod share the machine's process namespace, and their user is the
tester's. Tests make it fail on purpose.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from aiohttp import WSMsgType, web

from osmosis_grpc.tools import reaper
from tests.waiting import until

TOKEN = "canary-cluster-token"
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,251}[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
POD = "/api/v1/namespaces/{namespace}/pods"
BWRAP = shutil.which("bwrap")


def usable() -> bool:
    """Whether bubblewrap works on this machine."""
    return BWRAP is not None and subprocess.run([BWRAP, "--dev-bind", "/", "/", "true"], check=False).returncode == 0


class Pod:
    """A pod: its object, its volumes, and the marker of its processes."""

    def __init__(self, body: dict, folder: Path) -> None:
        self.body, self.folder, self.marker = body, folder, os.urandom(16).hex()
        body["metadata"] |= {"uid": self.marker, "creationTimestamp": "2026-01-01T00:00:00Z"}
        body["status"] = {"phase": "Pending"}
        self.container = body["spec"]["containers"][0]
        for volume in body["spec"]["volumes"]:
            (folder / volume["name"]).mkdir(parents=True)

    def command(self, argv: list[str]) -> list[str]:
        """The command in bubblewrap, with the pod's volumes and variables."""
        binds = [(self.folder / mount["name"], mount["mountPath"]) for mount in self.container["volumeMounts"]]
        variables = {item["name"]: item["value"] for item in self.container["env"]}
        variables |= {"PATH": "/usr/local/bin:/usr/bin:/bin", reaper.MARKER: self.marker}
        return [
            str(BWRAP), "--die-with-parent", "--tmpfs", "/", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin",
            "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--dev", "/dev",
            "--bind", "/proc", "/proc",
            *(word for source, target in binds for word in ("--bind", str(source), target)),
            "--remount-ro", "/", "--chdir", self.container["workingDir"], "--clearenv",
            *(word for name, value in variables.items() for word in ("--setenv", name, value)),
            "--", *argv,
        ]  # fmt: skip


class FakeApi:
    """The server. `faults` is asked before each request, with its method and what it is about."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.calls: list[str] = []
        """Each request: its method and the kind of thing, such as "POST pod"."""
        self.exec_arguments: list[list[str]] = []
        self.faults: Callable[[str], web.Response | str | None] = lambda call: None
        """Returns a response that replaces the answer; "lost" to do the work and close the connection; or None."""
        self.waiting: dict | None = None
        """The reason for which containers wait for ever."""
        self.break_after: int | None = None
        """The stream of an exec breaks after this many bytes of output."""
        self._folder = Path(tempfile.mkdtemp(prefix="fake-cluster-"))
        self._tasks: set[asyncio.Task] = set()

    async def __aenter__(self) -> "FakeApi":
        app = web.Application(middlewares=[self._guard])
        app.router.add_get(POD, self._list)
        app.router.add_post(POD, self._create)
        app.router.add_get(POD + "/{name}", self._get)
        app.router.add_delete(POD + "/{name}", self._delete)
        app.router.add_get(POD + "/{name}/exec", self._exec)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in list(self.pods):
            await self.remove(name)
        await self._runner.cleanup()
        shutil.rmtree(self._folder)

    def kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig for this server."""
        path = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "tester", "user": {"token": TOKEN}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "tester"}}],
            "current-context": "fake",
        }
        path.write_text(json.dumps(config))
        return path

    def processes(self, name: str) -> list[str]:
        """The command lines of a pod's processes."""
        mark, found = f"{reaper.MARKER}={self.pods[name].marker}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found

    async def left(self, name: str) -> None:
        """Wait until no process of a pod is left. Raises AssertionError with those that are."""
        try:
            await until(lambda: not self.processes(name))
        except AssertionError:
            raise AssertionError(f"processes are left: {self.processes(name)}") from None

    async def end(self, name: str, reason: str) -> None:
        """End a pod as a node does: its processes die, and its object stays."""
        pod = self.pods[name]
        await asyncio.to_thread(reaper.kill_marked, {pod.marker: None})
        pod.body["status"] = {"phase": "Failed", "reason": reason, "message": "the node has ended it"}

    async def remove(self, name: str) -> None:
        """Remove a pod, its processes and its volumes."""
        pod = self.pods.pop(name)
        await asyncio.to_thread(reaper.kill_marked, {pod.marker: None})
        shutil.rmtree(pod.folder)

    @web.middleware
    async def _guard(self, request, handler):
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return status(401, "Unauthorized", "Unauthorized")
        kind = "exec" if request.path.endswith("/exec") else "pod" if "name" in request.match_info else "pods"
        call = f"{request.method} {kind}"
        self.calls.append(call)
        fault = self.faults(call)
        if isinstance(fault, web.Response):
            return fault
        answer = await handler(request)
        if fault == "lost":
            request.transport.abort()
        return answer

    async def _create(self, request):
        body = await request.json()
        meta, spec = body["metadata"], body["spec"]
        if not NAME.fullmatch(meta["name"]) or not all(LABEL.fullmatch(value) for value in meta["labels"].values()):
            return status(422, "Invalid", "metadata is invalid")
        if not spec["containers"][0]["image"] or not isinstance(spec["activeDeadlineSeconds"], int):
            return status(422, "Invalid", "spec is invalid")
        if meta["name"] in self.pods:
            return status(409, "AlreadyExists", f'pods "{meta["name"]}" already exists')
        pod = self.pods[meta["name"]] = Pod(body, self._folder / meta["name"])
        task = asyncio.ensure_future(self._live(pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return web.json_response(pod.body, status=201)

    async def _live(self, pod: Pod) -> None:
        await asyncio.sleep(0.02)  # as a scheduler takes time
        state = {"waiting": self.waiting} if self.waiting else {"running": {}}
        container = {"name": "sandbox", "image": "x", "imageID": "x", "ready": not self.waiting, "restartCount": 0}
        statuses = [container | {"state": state}]
        pod.body["status"] = {"phase": "Pending" if self.waiting else "Running", "containerStatuses": statuses}
        await asyncio.sleep(pod.body["spec"]["activeDeadlineSeconds"])  # the pod's lifetime
        await self.end(pod.body["metadata"]["name"], "DeadlineExceeded")

    async def _list(self, request):
        wanted = dict(part.split("=", 1) for part in request.query.get("labelSelector", "").split(",") if part)
        items = [pod.body for pod in self.pods.values() if wanted.items() <= pod.body["metadata"]["labels"].items()]
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})

    async def _get(self, request):
        pod = self.pods.get(request.match_info["name"])
        return web.json_response(pod.body) if pod else missing(request)

    async def _delete(self, request):
        pod = self.pods.get(request.match_info["name"])
        if pod is None:
            return missing(request)
        await self.remove(request.match_info["name"])
        return web.json_response(pod.body)

    async def _exec(self, request):
        pod = self.pods.get(request.match_info["name"])
        if pod is None or pod.body["status"]["phase"] != "Running":
            return missing(request) if pod is None else status(400, "BadRequest", "the pod does not run")
        argv = request.query.getall("command")
        self.exec_arguments.append(argv)
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        assert socket.ws_protocol == "v4.channel.k8s.io"
        for channel in (1, 2, 3):
            await socket.send_bytes(bytes([channel]))
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*pod.command(argv), stdin=pipe, stdout=pipe, stderr=pipe)
        left = [self.break_after]

        async def pass_on(channel, stream):
            while data := await stream.read(32 * 1024):
                if left[0] is not None:
                    left[0] -= len(data)
                    if left[0] < 0:
                        request.transport.abort()
                        return
                await socket.send_bytes(bytes([channel]) + data)

        async def feed():
            async for message in socket:
                if message.type is WSMsgType.BINARY and message.data[:1] == b"\0":
                    process.stdin.write(message.data[1:])
                    with contextlib.suppress(ConnectionError):
                        await process.stdin.drain()

        feeding = asyncio.ensure_future(feed())
        try:
            await asyncio.gather(pass_on(1, process.stdout), pass_on(2, process.stderr))
            code = await process.wait()
        except ConnectionError:
            return socket  # as with a real kubelet, the command runs on without its client
        finally:
            feeding.cancel()
        if code == 0:
            ended = {"metadata": {}, "status": "Success"}
        else:
            causes = [{"reason": "ExitCode", "message": str(code if code > 0 else 128 - code)}]
            ended = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
        with contextlib.suppress(ConnectionError):
            await socket.send_bytes(b"\3" + json.dumps({"kind": "Status", "apiVersion": "v1", **ended}).encode())
            await socket.close()
        return socket


def status(code: int, reason: str, message: str, **headers: str) -> web.Response:
    """An error of the API."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }
    return web.json_response(
        body, status=code, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def missing(request) -> web.Response:
    """The error for a pod that does not exist."""
    return status(404, "NotFound", f'pods "{request.match_info["name"]}" not found')
