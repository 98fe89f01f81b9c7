"""Histories of messages for the tests of trajectories."""

from hypothesis import strategies as st

from osmosis_grpc.protocol.types import VersionSpan
from tests.records.export.outcomes import segment

CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
    {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "[1"}},
]
MESSAGES = [
    {"role": "developer", "content": "Use tools."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "a.png"}}],
    },
    {"role": "assistant", "content": None, "reasoning_content": "I add.", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "c2", "content": "wrong"},
    {"role": "tool", "tool_call_id": "c1", "content": "2"},
    {"role": "assistant", "content": "2", "refusal": None},
]
TOKENS = segment(
    [1, 2], [3, 4, 5, 6], [1, 0, 0, 1], [-1, 0, 0, -2], versions=(VersionSpan("7", 1), VersionSpan("8", 1))
)
PARTS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=5)),
    st.builds(
        lambda url: {"type": "image_url", "image_url": {"url": url}},
        st.sampled_from(["a.png", "x.bmp", "data:image/jpeg;base64,AA==", "data:text/plain,a", "http://h/a.WEBP?x=1"]),
    ),
    st.just({"type": "input_audio", "input_audio": {}}),
)
CONTENTS = st.one_of(st.none(), st.text(max_size=5), st.lists(PARTS, max_size=3))
CALL = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["c1", "c2", ""]),
        "function": st.fixed_dictionaries(
            {"name": st.text(max_size=3), "arguments": st.sampled_from(["", "{}", "[]", "{", None])}
        ),
    }
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"]), "content": CONTENTS},
    optional={
        "tool_calls": st.one_of(st.none(), st.lists(CALL, max_size=3)),
        "tool_call_id": st.sampled_from(["c1", "c2", "", None]),
        "reasoning_content": st.one_of(st.none(), st.text(max_size=3)),
        "name": st.text(max_size=3),
    },
)
