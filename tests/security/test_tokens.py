"""Tokens: which ones are accepted, who owns them, and that no text has them."""

import ast
import inspect
import pickle

import pytest

from osmosis_grpc.network import bearer_tokens as module
from osmosis_grpc.network.bearer_tokens import Tokens, is_for, narrowed
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.network.tls import ClientTls
from osmosis_grpc.serve.options import check_trace, credentials_to_show, security_for_callers
from osmosis_grpc.settings.command_line import OptionError
from osmosis_grpc.settings.settings import RolloutServerSettings
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.callback_trainer import CallbackTrainer


def test_a_name_is_an_owner_and_a_secret_without_one_is_its_own():
    tokens = Tokens(["lab=old", "lab=new", "alone", "base64==", "x=a=b=="])
    assert tokens.owner("Bearer old") == tokens.owner("Bearer new") == "token:lab"
    assert tokens.owner("Bearer a=b==") == "token:x"
    others = {tokens.owner("Bearer alone"), tokens.owner("Bearer base64==")}
    assert len(others) == 2
    assert not any("alone" in owner or "base64" in owner for owner in others)
    assert others == {Tokens(text).owner(text) for text in ("alone", "base64==")}, "the same in every process"
    for shown in ("", "Bearer", "Bearer lab", "Bearer lab=old", "Bearer ol", "Bearer old ,", "lab", "Bearer x"):
        assert tokens.owner(shown) is None, shown
    assert Tokens().owner("") is None


def test_a_token_must_fit_into_a_header():
    for text in ("", " ", "a ", " a", "a\nb", "ü", "name= a"):
        with pytest.raises(ValueError, match="printable ASCII"):
            Tokens([text])


def test_a_credential_is_good_for_its_rollout_while_its_token_is_accepted():
    keys = Tokens(["n=one", "two"]).callbacks
    bound, free = keys.make("r1"), keys.make()
    assert narrowed(free, "r1") == bound, "whoever has the one can make the other"
    assert narrowed(bound, "r2") == bound
    assert narrowed("two", "r1") == "two"
    for made in (bound, free):
        assert keys.made(made)
        assert Tokens(["n=one", "two"]).owner(made) is None
        assert Tokens(["other", "one"]).callbacks.made(made), "after a rotation, in another process"
        assert not Tokens(["other", "two"]).callbacks.made(made)
        body, _, signature = made.rpartition(".")
        for bad in (made[:-1], made + "0", body, f"{body}x.{signature}", "", ".", "cb1..", f"cb1.{signature}"):
            assert not keys.made(bad), bad
    assert is_for(bound, "r1")
    assert not is_for(bound, "r2")
    assert is_for(free, "r2")
    assert is_for("two", "r2")
    assert not keys.made(f"cb1..{bound.split('.')[2]}"), "what binds it is signed"
    assert not Tokens().callbacks.made(free)
    with pytest.raises(ValueError, match="no secret"):
        Tokens().callbacks.make()


def test_tokens_are_compared_as_digests_in_constant_time():
    """Read from the source: all of them are compared, and with nothing but compare_digest."""
    tree = ast.parse(inspect.getsource(module))
    (owner,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "owner"]
    (loop,) = [node for node in ast.walk(owner) if isinstance(node, ast.For)]
    assert not [node for node in ast.walk(loop) if isinstance(node, ast.Return | ast.Break | ast.Compare)]
    assert "hmac.compare_digest(digest, known)" in ast.unparse(loop)


def test_nothing_shows_a_secret(tmp_path):
    canary = "canary-of-the-tokens"
    tokens = Tokens([canary, f"name={canary}2"])
    shown = [
        tokens,
        ServerSecurity([canary]),
        Credentials(token=canary),
        CallbackTrainer(lambda request: None, tokens=canary),
        RolloutServerSettings(token=canary, connect_token=canary),
        tokens.callbacks,
        Trainer([], lambda request: None, credentials=Credentials(token=canary), security=ServerSecurity(canary)),
    ]
    for value in shown:
        assert canary not in repr(value)
        assert canary not in str(value)
    assert canary.encode() not in pickle.dumps((tokens, tokens.callbacks))
    for make in (
        lambda: Tokens([canary + "\n"]),
        lambda: Credentials(token=canary + "\n"),
        lambda: RolloutClient("10.0.0.1:1", token=canary),
        lambda: RolloutServerSettings(token=canary + "\t"),
    ):
        with pytest.raises(ValueError) as caught:
            make()
        assert canary not in str(caught.value)


def test_several_tokens_stand_on_a_line_each():
    assert RolloutServerSettings(token="one\nlab=two\n").tokens == ("one", "lab=two")
    assert RolloutServerSettings(token="with, comma").tokens == ("with, comma",)
    assert RolloutServerSettings().tokens == ()
    for text in ("", "\n", "one\n two"):
        with pytest.raises(ValueError, match="printable ASCII"):
            RolloutServerSettings(token=text)


def test_a_file_of_tokens_has_one_on_each_line(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("one\r\n\nlab=two\n")
    assert RolloutServerSettings(token_file=path).tokens == ("one", "lab=two")
    path.write_text("one\u2028two\n")
    with pytest.raises(ValueError, match="printable ASCII"):
        RolloutServerSettings(token_file=path).tokens


async def test_a_token_is_sent_in_plain_text_to_loopback_only():
    for target in ("127.0.0.1:1", "localhost:1", "[::1]:1"):
        async with RolloutClient(target, token="t"):
            pass
    for target in ("10.0.0.1:1", "trainer.example:1", "0.0.0.0:1", "[2001:db8::1]:1"):
        with pytest.raises(ValueError, match="plain text"):
            RolloutClient(target, token="t")
        with pytest.raises(ValueError, match="plain text"):
            Trainer([target], lambda request: None, credentials=Credentials(token="t"))
        async with RolloutClient(target, token="t", insecure=True), RolloutClient(target, token="t", tls=ClientTls()):
            pass


@pytest.mark.parametrize("transport", ["attach", "callback"])
async def test_where_a_trainer_may_listen(transport):
    def trainer(**options):
        security = ServerSecurity(**options)
        return Trainer([], lambda request: None, transport=transport, listen="0.0.0.0:0", security=security)

    for tokens, text in (((), "needs a token or TLS"), ("t", "plain text")):
        with pytest.raises(ValueError, match=text):
            async with trainer(tokens=tokens):
                pass
    async with trainer(tokens="t", insecure=True):
        pass


OF_TLS = "{tls_cert}, {tls_key}, {tls_client_ca}: {problem}"


@pytest.mark.parametrize(
    ("given", "text", "problem"),
    [
        ({"tls_cert": "server.pem"}, "{tls_cert} and {tls_key} go together", ""),
        ({"tls_client_ca": "server.pem"}, "{tls_client_ca} needs {tls_cert} and {tls_key}", ""),
        ({"tls_cert": "none", "tls_key": "server.key"}, OF_TLS, "none cannot be read"),
        ({"tls_cert": "server.key", "tls_key": "server.pem"}, OF_TLS, "not a certificate and its key"),
        ({"tls_cert": "server.pem", "tls_key": "client.key"}, OF_TLS, "not a certificate and its key"),
        ({"tls_cert": "server.pem", "tls_key": "server.key", "tls_client_ca": "server.key"}, OF_TLS, "no certificate"),
        ({"token": "lab= a"}, "{token}: {problem}", "printable ASCII"),
    ],
)
def test_security_options_that_cannot_be_used_are_named(files, given, text, problem):
    paths = {name: files.folder / value if name.startswith("tls") else value for name, value in given.items()}
    with pytest.raises(OptionError) as refused:
        security_for_callers(RolloutServerSettings(**paths))
    assert refused.value.text == text
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("", None, "server.pem", None), "C and D go together"),
        (("", "none", None, None), "B, C, D: {problem}"),
        (("a ", None, None, None), "A: {problem}"),
    ],
)
def test_credentials_that_cannot_be_used_are_named(files, given, text):
    token, *names = given
    paths = [None if name is None else files.folder / name for name in names]
    with pytest.raises(OptionError) as refused:
        credentials_to_show(token, *paths, tls=False, insecure=False, names=("A", "B", "C", "D"))
    assert refused.value.text == text


@pytest.mark.parametrize("tracers", ["all", "http", "api", "timer,http", "*", "tcp", "new_one"])
def test_tracers_that_print_tokens_are_refused(tracers):
    with pytest.raises(OptionError) as refused:
        check_trace(tracers)
    assert refused.value.values == {"names": tracers.removeprefix("timer,")}


@pytest.mark.parametrize("tracers", ["", "timer", "connectivity_state, subchannel", "timer,-http"])
def test_other_tracers_are_allowed(tracers):
    check_trace(tracers)
