"""What the mock engine samples: for each case of `cases` the replies of its rollout, in the order of the requests.

A piece is encoded alone, so several pieces make ids that encoding the whole text would not give.
"""

import zlib
from dataclasses import dataclass

from comparison.models import Model


def call(arguments: str, name: str = "add") -> str:
    """Return a tool call as the models write it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@dataclass(frozen=True)
class Step:
    """One reply. `stop` is a string that ends it and that the engine leaves out of the text, as vLLM does."""

    pieces: tuple[str, ...]
    end: bool = True
    finish: str = "stop"
    status: int = 200
    delay: float = 0.0
    version: str = "1"
    stop: str = ""

    def ids(self, model: Model) -> list[int]:
        """Return the ids that the engine samples."""
        return [i for piece in self.pieces for i in model.encode(piece)] + ([model.end] if self.end else [])


def s(*pieces: str, **more: object) -> Step:
    """Write a step."""
    return Step(pieces, **more)  # type: ignore[arg-type]


SUMS = (s(call('{"a": 1, "b": 2}')), s(call('{"a": 3, "b": 4}')), s("The sums are done."))
FINE, END = s("Fine so far."), s("The end.")
THINK = "<think>\n%s\n</think>\n\n"
SCRIPTS: dict[str, tuple[Step, ...]] = {
    "plain": (s("Hello, I am one."), s("Then two follows."), s("And three ends it.")),
    "nonround": (
        s("The", " ans", "w", "er", " is", " 4", "5", " ok"),
        s("s", "econd", " re", "p", "l", "y"),
        s("third"),
    ),
    "tooljson": (
        s(call('{"a": 1e0,"b":1.0 , "s": "caf\\u00e9 \\ud83d\\ude00", "c": 1.50}').replace(": ", ":")),
        s("The sum is 2."),
    ),
    "toolplain": (s(call('{"a": 1, "b": 2}')), s("The sum is 3.")),
    "parallel": (s("Two calls.\n" + call('{"a": 1, "b": 2}') + "\n" + call('{"a": 3, "b": 4}')), s("Both are done.")),
    "reasoning": (
        s(THINK % "Let me think." + "It is one."),
        s(THINK % "Of two." + "It is two."),
        s(THINK % "Last." + "Three."),
    ),
    "reasontool": (
        s(THINK % "I need the tool." + call('{"a": 1, "b": 2}')),
        s(THINK % "Got it." + "The sum is 3."),
        s(THINK % "User again." + "Done."),
    ),
    "compaction": (s("First long reply."), s("Second long reply."), s("Reply after the summary."), s("Last reply.")),
    "branch": (s("A first reply."), s("A bad branch."), s("A good branch."), s("The end of it.")),
    "error500": (FINE, s(status=500), s("Recovered now."), END),
    "timeout": (FINE, s("A reply too late.", delay=2.5), s("Asked again."), END),
    "length": (s("A whole reply."), s("This reply is cut in the mid", end=False, finish="length"), END),
    "versions": (s("From one.", version="1"), s("From two.", version="2"), s("From three.", version="3")),
    "subagent": (s(call('{"q": "what"}', "ask")), s("Sub says hello."), s("Sub says bye."), s("Main is done.")),
    "abort": (FINE, s("Half of a re", end=False, finish="abort"), s("A full reply."), END),
    "cancel": (FINE, s("Never wanted.", delay=30.0)),
    "empty": (s("One."), s(end=False), s("Three.")),
    "bestof": (s("A first reply."), s("One candidate."), s("Another candidate."), END),
    "stream": (s("Hello streamed."), s("Once more."), s("And an end.")),
    "streamtool": SUMS,
    "streamcut": (FINE, s("This stream is closed by the agent.", delay=1.0), s("Asked again."), END),
    "parts": (s("A first reply."), s("A second reply."), END),
    "reserial": SUMS,
    "dropreason": (
        s(THINK % "I need the tool." + call('{"a": 1, "b": 2}')),
        s(THINK % "Once more." + call('{"a": 3, "b": 4}')),
        s(THINK % "Now done." + "The sums are done."),
    ),
    "tooltwice": SUMS,
    "branchfirst": (s("A first reply."), s("The KEPT branch."), s("The DROPPED branch."), s("The end of it.")),
    "edited": (s("The ORIGINAL words."), s("After the edit."), END),
    "concurrent": (s("A first reply."), s("One side."), s("Other side."), END),
    "eosonly": (s("One."), s(), s("Three.")),
    "blanks": (s("\n\n  Indented, with a tail. \n"), s("   Again.  "), s("None here.")),
    "splitglyph": (s("A face 😀 and é."), s("Only 👩‍🚀 here."), END),
    "stopstring": (
        s("Think: add.\nObservation:", end=False, stop="Observation:"),
        s("Think: done.\nObservation:", end=False, stop="Observation:"),
        END,
    ),
    "shorten": SUMS,
    "window": (s("Reply one."), s("Reply two."), s("Reply three."), s("Reply four.")),
    "newtools": (s("No tool yet."), s(call('{"a": 1, "b": 2}')), s("The sum is 3.")),
    "system": (s("Short."), s("Long now."), END),
    "long": (s("I have read it."), s("And once more."), END),
    "twochoices": (s("A first reply."), s("A choice."), s("Another choice."), END),
    "brokencall": (
        s('<tool_call>\n{"name": "add", "arguments": {"a": 1,\n</tool_call>'),
        s("I could not call it."),
        END,
    ),
    "swapped": (s("Two calls.\n" + call('{"a": 1, "b": 2}') + "\n" + call('{"a": 3, "b": 4}')), s("Both are done.")),
    "resultparts": SUMS,
    "reminder": (s("A first reply."), s("Reminded now."), END),
    "open": (s("An open stream ends.", delay=5.0), s("And one more.")),
}
FILL = "It is a good idea to look at what the tool said before the next step is taken. " * 40
TURNS, TOKENS = 9, 256
"""The rollout whose cost is measured: its turns, all but the last with a tool call, and the tokens of each."""


def bench(turn: int, model: Model, *, calls: bool) -> list[int]:
    """Return the ids of a turn of the rollout whose cost is measured; encoding their text gives the same ids."""
    tail = model.encode("\n" + call(f'{{"a": {turn}, "b": 2}}')) if calls else []
    fill = model.encode(FILL)
    for count in range(TOKENS - 1 - len(tail), 0, -1):
        ids = fill[:count] + tail
        text = model.decode(ids)
        if model.encode(text) == ids and not model.decode(fill[:count]).endswith(" "):
            return [*ids, model.end]
    raise AssertionError(f"{model.name} has no text of {TOKENS} tokens that encodes to itself")


def logprobs(key: str, step: int, count: int) -> list[float]:
    """Return the logprobs of a reply. They are multiples of 1/1024, which every float holds exactly."""
    start = zlib.crc32(f"{key}{step}".encode())
    return [-((start + 7919 * i) % 1000 + 1) / 1024 for i in range(count)]
