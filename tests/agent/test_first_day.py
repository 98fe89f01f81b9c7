"""A chat's result used as another library's: the error says what to use."""

import copy
import pickle

import pytest

from osmosis_grpc.agent import CompletionsResult

RESULT = CompletionsResult(message={"role": "assistant", "content": "hi"}, finish_reason="stop")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("choices", "use result.message"),
        ("output_text", "use result.content"),
        ("stop_reason", "use result.finish_reason"),
        ("role", 'use result.message["role"]'),
        ("model_dump", "use result.message, which is a dict"),
    ],
)
def test_a_name_of_another_library_is_answered_with_ours(name, hint):
    with pytest.raises(AttributeError, match=f"a chat's result has no attribute '{name}'") as raised:
        getattr(RESULT, name)
    assert hint in str(raised.value)
    assert not hasattr(RESULT, name)


def test_a_result_is_no_dict():
    with pytest.raises(TypeError, match=r"use result\.message"):
        RESULT["choices"]
    with pytest.raises(TypeError, match=r"use result.message, result.content or result.tool_calls"):
        RESULT[0]


def test_other_names_are_as_ever():
    with pytest.raises(AttributeError, match=r"^a chat's result has no attribute 'foo'$"):
        RESULT.foo
    assert copy.deepcopy(RESULT) == RESULT
    assert pickle.loads(pickle.dumps(RESULT)) == RESULT
