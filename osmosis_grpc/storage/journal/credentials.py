"""Stores the credentials of rollouts. Each rollout with credentials has one file.

Only the user of the process can read the file. Credentials are stored nowhere else. The file is deleted when the
rollout is settled.
"""

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from osmosis_grpc.protocol.types import InitRequest
from osmosis_grpc.protocol.wire.rollout import callback_from_bytes, callback_to_bytes
from osmosis_grpc.storage.state_folders import fsync

log = logging.getLogger(__name__)


FOLDER = "credentials"
"""The folder of the credentials, below the state folder."""


class Secrets:
    """The credential files below a state folder."""

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def put(self, init: InitRequest) -> None:
        """Write the credentials of an Init to the disk. Raises OSError."""
        found = _credentials(init)
        path = self.path(init.request.rollout_id, init.request.attempt)
        if found is None:
            path.unlink(missing_ok=True)
            return
        new = path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(_signed(json.dumps(found)))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        fsync(self._folder)  # otherwise a power cut after the commit of the rollout's row can undo the new name

    def add_to(self, init: InitRequest) -> InitRequest:
        """Return an Init with its stored credentials. Return the Init unchanged if these are missing or damaged."""
        path = self.path(init.request.rollout_id, init.request.attempt)
        try:
            text = path.read_text()
            if text != _signed(text[9:]):
                raise ValueError("its checksum does not match")
        except FileNotFoundError:
            return init
        except ValueError as error:
            log.error("the credentials of rollout %s are damaged in %s: %s", init.request.rollout_id, path, error)
            return init
        found = json.loads(text[9:])
        if init.callback is not None and found["callback"]:
            init = replace(init, callback=callback_from_bytes(found["callback"].encode("latin-1")))
        request = replace(init.request, api_key=found["api_key"], server_url=found["server_url"])
        return replace(init, request=request)

    def drop(self, rollout_id: str, attempt: int) -> None:
        """Delete the credentials of a rollout. If the deletion fails, the next start deletes them."""
        with suppress(OSError):
            self.path(rollout_id, attempt).unlink()

    def keep(self, rollouts: Iterable[tuple[str, int]]) -> None:
        """Delete the credentials of all rollouts except these."""
        kept = {self.path(*rollout) for rollout in rollouts}
        for path in self._folder.iterdir():
            if path not in kept:
                path.unlink(missing_ok=True)

    def path(self, rollout_id: str, attempt: int) -> Path:
        """Return the file of an attempt's credentials."""
        return self._folder / f"{hashlib.sha256(rollout_id.encode()).hexdigest()[:40]}-{attempt}.json"


def has_secrets(init: InitRequest) -> bool:
    """Return whether an Init has credentials."""
    return _credentials(init) is not None


def _signed(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x} {text}"


def _credentials(init: InitRequest) -> dict[str, str | None] | None:
    """Return the credentials of an Init, or None if it has no credentials.

    The result includes the callback if the callback has credentials.
    """
    request, callback = init.request, b""
    if init.callback is not None:
        callback = callback_to_bytes(init.callback, secrets=True)
        if callback == callback_to_bytes(init.callback, secrets=False):
            callback = b""
    if not (callback or request.api_key or request.server_url):
        return None
    return {"callback": callback.decode("latin-1"), "api_key": request.api_key, "server_url": request.server_url}
