"""Credentials of rollouts: a file for each that has any, readable by the owner of the process alone.

They stand nowhere else, and are gone with the acknowledgement of the rollout's completion.
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

from osmosis_grpc.types import InitRequest
from osmosis_grpc.wire.rollout import callback_from_bytes, callback_to_bytes

log = logging.getLogger(__name__)


class Secrets:
    """The files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    def put(self, init: InitRequest) -> None:
        """Write what an Init holds of them, and see it on the disk."""
        found = _of(init)
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
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)  # or a power cut could take the name back, after the row that needs it was committed
        finally:
            os.close(folder)

    def add_to(self, init: InitRequest) -> InitRequest:
        """An Init with its secrets put back, as long as they are what was written."""
        path = self.path(init.request.rollout_id, init.request.attempt)
        try:
            text = path.read_text()
            if text != _signed(text[9:]):
                raise ValueError("its checksum does not agree")
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
        """Forget those of a rollout; what cannot be deleted now is at the next start."""
        with suppress(OSError):
            self.path(rollout_id, attempt).unlink()

    def keep(self, rollouts: Iterable[tuple[str, int]]) -> None:
        """Forget all but those of these rollouts."""
        kept = {self.path(*rollout) for rollout in rollouts}
        for path in self._folder.iterdir():
            if path not in kept:
                path.unlink(missing_ok=True)

    def path(self, rollout_id: str, attempt: int) -> Path:
        """Return the file of an attempt's credentials."""
        return self._folder / f"{hashlib.sha256(rollout_id.encode()).hexdigest()[:40]}-{attempt}.json"


def has_secrets(init: InitRequest) -> bool:
    """Whether there is anything to write."""
    return _of(init) is not None


def _signed(text: str) -> str:
    """A text with its checksum before it."""
    return f"{zlib.crc32(text.encode()):08x} {text}"


def _of(init: InitRequest) -> dict[str, str | None] | None:
    """Return the secrets of an Init, with its whole callback if that has any; None if there are none."""
    request, callback = init.request, b""
    if init.callback is not None:
        callback = callback_to_bytes(init.callback, secrets=True)
        if callback == callback_to_bytes(init.callback, secrets=False):
            callback = b""
    if not (callback or request.api_key or request.server_url):
        return None
    return {"callback": callback.decode("latin-1"), "api_key": request.api_key, "server_url": request.server_url}
