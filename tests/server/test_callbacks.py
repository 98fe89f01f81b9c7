"""Callback.target is HOST:PORT, and `tls` alone says whether the server speaks TLS."""

import pytest

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.wire.rollout import callback_from_bytes, callback_to_bytes
from osmosis_grpc.trainer import Callback, CallbackTls, RolloutClient

QUESTION = [{"role": "user", "content": "What is 1 + 1?"}]
URLS = ["http://127.0.0.1:1", "https://127.0.0.1:1", "HTTP://127.0.0.1:1/v1", "grpc://127.0.0.1:1", "://127.0.0.1:1"]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("tls", [None, CallbackTls()])
async def test_a_url_is_refused_and_the_text_says_what_to_send(serve, stack, url, tls):
    server = await serve()
    client = await stack.enter_async_context(RolloutClient(server.address))
    with pytest.raises(InvalidArgument) as refusal:
        await client.init(rollout_id="r", messages=QUESTION, callback=Callback(target=url, tls=tls))
    ((field, problem),) = refusal.value.violations
    assert field == "callback.target"
    assert problem == "is a URL; send HOST:PORT, and set callback.tls if the trainer speaks TLS"
    assert not [row async for row in client.rollouts()]


@pytest.mark.parametrize("tls", [None, CallbackTls(), CallbackTls("trainer.example")])
def test_presence_of_tls_survives(tls):
    """An empty CallbackTls means TLS with the name of the target's host. It differs from no TLS."""
    callback = Callback(target="127.0.0.1:1", tls=tls)
    assert callback_from_bytes(callback_to_bytes(callback, secrets=True)).tls == tls
