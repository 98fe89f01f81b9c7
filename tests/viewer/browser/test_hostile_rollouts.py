"""Rollouts whose texts are markup and scripts, on live pages of `serve --view` and `view --from`: nothing runs."""

import base64
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from benchmarks.viewed import viewing
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import Annotation, Group
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.processes import serving
from tests.viewer.browser.conftest import apart

pytestmark = pytest.mark.browser

HOSTILE = (
    "<script data-hostile>alert(1)</script>",
    "</script></style></textarea></title><img data-hostile src=x onerror=alert(1)>",
    "'\"><svg data-hostile onload=alert(1)><animate onbegin=alert(1)></svg>",
    "<a data-hostile href='javascript:alert(1)'>link</a> [link](javascript:alert(1)) javascript:alert(1)",
    "<iframe data-hostile srcdoc='<script>parent.alert(1)</script>'></iframe><base data-hostile href=//evil.example>",
    "<meta data-hostile http-equiv=refresh content='0;url=//evil.example'><link data-hostile rel=stylesheet href=//e>",
    "<div data-hostile hx-get=/ hx-trigger=load hx-on::load=alert(1) sse-connect=/stream></div>",
    "<form data-hostile action=javascript:alert(1)><input autofocus onfocus=alert(1)></form>",
    "{{ constructor.constructor('alert(1)')() }}${alert(1)}{% raw %}<%= alert(1) %>",
    "\u202etxt.exe\u2066\u200b&lt;b data-hostile&gt;&#x3c;b data-hostile&#x3e;",
)
TEXT = "\n".join(HOSTILE)
NAME = "<img data-hostile src=x onerror=alert(1)>'\"><svg data-hostile onload=alert(1)>{{7*7}}"
"""A text that can be an id: without a line break and a slash."""
SVG = "<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(1)</script></svg>"
PICTURES = [
    f"data:image/svg+xml;base64,{base64.b64encode(SVG.encode()).decode()}",
    "data:text/html,<script data-hostile>alert(1)</script>",
    "javascript:alert(1)",
    "https://evil.example/pixel.png",
    'data:image/png;base64,x" data-hostile onerror="alert(1)',
]
AGENT = """
from osmosis_grpc.rollout import RolloutAgentLoop, tool

@tool
async def look(what: str) -> str:
    '''Looks.'''
    if "fails" in what:
        raise LookupError(what)
    return what

class Agent(RolloutAgentLoop):
    name = "agent"
    tools = (look,)

    async def run(self, ctx):
        text = ctx.request.metadata["text"]
        ctx.log_event(text, **{text: [text, {text: text}]})
        messages = await ctx.tool_loop(ctx.request.messages)
        await ctx.chat([{"role": "user", "content": text}], sample=ctx.request.metadata["name"])
        ctx.set_reward(0.5, sample="main", name=ctx.request.metadata["name"][:60])
        ctx.log_event(text, sample="main")
        if "bad" in ctx.request.rollout_id:
            raise LookupError(text)
        return ctx.complete(messages, reward=0.5, extra_fields={text: text}, finish_reason=text[:200])

agent = Agent()
"""
ALIEN = """() => [...document.querySelectorAll('*')].flatMap((each) => [
    ...(each.matches('[data-hostile], iframe, base, object, embed, meta[http-equiv=refresh]') ? [each.outerHTML] : []),
    ...[...each.attributes].filter((a) => /^on|^hx-on/i.test(a.name) ||
        (/^(href|src|action|formaction|xlink:href)$/i.test(a.name) &&
            (/^\\s*(javascript|vbscript|data:text)/i.test(a.value) || a.value.startsWith('https://evil')))
    ).map((a) => `${each.tagName} ${a.name}=${a.value}`),
])"""


def replies(request):
    """A reply of the model: calls of a tool that is there and of one that is not, thoughts, and texts."""
    if request.chat_number > 1 or request.sample != "main":
        return answer(request, TEXT, version=NAME)
    named = [("look", '{"what": %s}'), ("look", '{"what": "fails ", "more": %s}'), (NAME, "%s")]
    calls = [
        {
            "id": f"{NAME}{number}",
            "type": "function",
            "function": {"name": name, "arguments": arguments.replace("%s", '"' + NAME.replace('"', '\\"') + '"')},
        }
        for number, (name, arguments) in enumerate(named)
    ]
    said = {"content": TEXT, "reasoning_content": TEXT, TEXT: TEXT}
    return answer(request, {"role": "assistant", **said, "tool_calls": calls}, version=NAME)


async def policy(request):
    return replies(request)


async def run(address, *names):
    """Run rollouts to their ends, and annotate them."""
    parts = [{"type": "text", "text": TEXT}, *({"type": "image_url", "image_url": {"url": url}} for url in PICTURES)]
    messages = [{"role": "system", "content": TEXT, "name": NAME}, {"role": "user", "content": parts}]
    async with CallbackTrainer(policy) as trainer, RolloutClient(address) as client:
        for index, name in enumerate(names):
            await client.init(
                rollout_id=name, messages=messages, callback=trainer.callback(), label=TEXT, max_turns=9,
                metadata={"text": TEXT, "name": NAME, TEXT: {TEXT: [TEXT]}}, group=Group(NAME, index, len(names)),
                completion_params={"stop": [TEXT], "model": TEXT},
            )  # fmt: skip
        for name in names:
            await trainer.outcome(name, timeout=60)
            note = Annotation(author=NAME, labels=(NAME,), note=TEXT, dropped_reason=NAME, weight_step=NAME)
            await client.annotate(name, note)


@pytest.fixture(scope="module", params=["serve --view", "view --from"])
def live(request, tmp_path_factory, logs):
    """A server, and the address of the pages that show its rollouts while they run."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "hostile_agent.py").write_text(AGENT)
    own = request.param == "serve --view"
    more = ("--view", "--view-port", "0") if own else ()
    with serving("-m", "hostile_agent:agent", "--state-dir", "state", *more, cwd=folder) as (_, ready):
        if own:
            yield ready["grpc"], f"http://{ready['view'].removeprefix('http://').rstrip('/')}/"
        else:
            with viewing("--from", ready["grpc"], log=logs / "hostile.log") as url:
                yield ready["grpc"], url


def check(page):
    """Nothing of the rollouts is an element, a handler or an address. The fixture finds what has run."""
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.wait_for_timeout(300)  # a script, if one were there, would run now
    expect(page.locator(".htmx-request")).to_have_count(0)
    assert page.evaluate(ALIEN) == []


def test_rollouts_that_appear_on_live_pages_run_nothing(browse, live):
    address, url = live
    name = f"live {NAME}"
    pages = [browse(url + path) for path in ("", "findings", "curves")]
    apart(run(address, name, f"bad live {NAME}"))
    expect(pages[0].locator(".rollouts tbody th a").filter(has_text="live")).to_have_count(2)
    for page in pages:
        check(page)


PAGES = {
    "list": "?q=live",
    "rollout": "rollout?id={id}",
    "first turn": "rollout?id={id}#turn=1",
    "failed": "rollout?id={bad}#failed",
    "turn": "turn?id={id}&turn=1",
    "prompt": "turn?id={id}&turn=2&whole=1",
    "turn of the other sample": "turn?id={id}&turn=1&sample={name}",
    "tokens": "rollout/tokens?id={id}",
    "tokens of the other sample": "rollout/tokens?id={id}&sample={name}",
    "group": "group?id={name}",
    "batch": "batch?group={name}",
    "findings": "findings",
    "search": "search?text={name}",
    "curves": "curves",
    "throughput": "throughput",
    "server": "server",
    "wrong filter": "?agent={name}&reason={name}",
}


@pytest.fixture(scope="module")
def ended(live):
    address, url = live
    apart(run(address, f"ended {NAME}", f"bad ended {NAME}"))
    return url


@pytest.mark.parametrize("path", PAGES)
def test_a_page_of_hostile_rollouts_runs_nothing(browse, ended, path):
    names = {"id": quote(f"ended {NAME}"), "bad": quote(f"bad ended {NAME}"), "name": quote(NAME)}
    page = browse(ended + PAGES[path].format(**names), status=400 * (path == "wrong filter"))
    check(page)
    for link in page.locator("#content a[href]").all():
        assert (link.get_attribute("href") or "").startswith(("/", "#", "?")), link.evaluate("each => each.outerHTML")
