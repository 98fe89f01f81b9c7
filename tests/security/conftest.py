"""Certificates as files, from a CA that is made once, and calls of any RPC with any credential."""

import asyncio
import datetime
import os
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_reflection.v1alpha import reflection_pb2

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import services_pb2
from osmosis_grpc.server import ClientTls, ServerTls

TOKEN, SECOND = "first-secret-of-this-server", "second-secret-of-this-server"
YESTERDAY = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
LONG_AGO = YESTERDAY - datetime.timedelta(days=30)
WRONG = {
    "missing": None,
    "empty": "",
    "another": "Bearer another",
    "a prefix": f"Bearer {TOKEN[:-1]}",
    "more than it": f"Bearer {TOKEN}x",
    "in capitals": f"Bearer {TOKEN.upper()}",
    "another scheme": f"Basic {TOKEN}",
    "its name": "Bearer named",
    "with its name": f"Bearer named={TOKEN}",
    "taken away": "Bearer taken-away",
}
"""Headers that a server with the tokens named=TOKEN and SECOND refuses."""
RIGHT = {"the first": f"Bearer {TOKEN}", "the second": f"Bearer {SECOND}", "alone": TOKEN, "lower": f"bearer {TOKEN}"}


class Files:
    """Certificates of one CA as PEM files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *names: str, common_name: str | None = None, expired: bool = False, by=None) -> None:
        """Write NAME.pem and NAME.key, each at once: who reads them sees the old or the new."""
        dates = {"not_before": LONG_AGO, "not_after": YESTERDAY} if expired else {}
        made = (by or self).authority.issue_cert(*names, common_name=common_name, **dates)
        for ending, text in (
            ("key", made.private_key_pem.bytes()),
            ("pem", b"".join(pem.bytes() for pem in made.cert_chain_pems)),
        ):
            new = self.folder / f"{name}.{ending}.new"
            new.write_bytes(text)
            os.replace(new, self.folder / f"{name}.{ending}")

    def server(self, name: str = "server", *, client_ca: Path | None = None) -> ServerTls:
        return ServerTls(cert=self.folder / f"{name}.pem", key=self.folder / f"{name}.key", client_ca=client_ca)

    def client(self, name: str = "", *, server_name: str = "", ca: Path | None = None) -> ClientTls:
        files = {"cert": self.folder / f"{name}.pem", "key": self.folder / f"{name}.key"} if name else {}
        return ClientTls(ca=ca or self.ca, server_name=server_name, **files)


def issued(folder: Path) -> Files:
    """A CA with a server's and a client's certificate."""
    files = Files(folder)
    files.issue("server", "127.0.0.1", "localhost")
    files.issue("client", "trainer-7@lab.example", common_name="trainer-7")
    return files


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Nobody changes these."""
    files = issued(tmp_path_factory.mktemp("certificates"))
    files.issue("expired", "127.0.0.1", expired=True)
    files.issue("nameless", common_name="trainer-8")
    return files


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Another CA."""
    return issued(tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def fresh(tmp_path: Path) -> Files:
    """Files that a test may change."""
    return issued(tmp_path / "fresh")


def methods(*services: str) -> list[tuple[str, bool, bool]]:
    """Every method of services: its path, and whether either side streams."""
    pool = [*services_pb2.DESCRIPTOR.services_by_name.values(), *reflection_pb2.DESCRIPTOR.services_by_name.values()]
    return [
        (f"/{service.full_name}/{method.name}", method.client_streaming, method.server_streaming)
        for service in pool
        if service.name in services
        for method in service.methods
    ]


LOST = "Internal error from Core"
"""The details of grpc.aio's error if a client's write meets the end of its stream. The real status is lost then."""


async def status(
    channel: grpc.aio.Channel, method: tuple[str, bool, bool], shown: str | None, body: bytes = b""
) -> str:
    """The name of the status of a call, OK when it is answered."""
    while True:
        answer = await _once(channel, method, shown, body)
        if answer != LOST:
            return answer


async def _once(channel: grpc.aio.Channel, method: tuple[str, bool, bool], shown: str | None, body: bytes) -> str:
    path, sends, receives = method
    shape = f"{'stream' if sends else 'unary'}_{'stream' if receives else 'unary'}"
    metadata = None if shown is None else (("authorization", shown),)
    call = getattr(channel, shape)(path)(iter([body]) if sends else body, metadata=metadata, timeout=10)
    try:
        async with asyncio.timeout(15):
            if receives:
                await call.read()
                if not sends:
                    return "OK"  # the stream of events has no end
                return (await call.code()).name
            await call
            return "OK"
    except grpc.aio.AioRpcError as error:
        return LOST if error.details() == LOST else error.code().name
    finally:
        call.cancel()
