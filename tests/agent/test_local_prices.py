"""An agent may import litellm first: the commands keep it from reading prices over the network."""

import pytest

from osmosis_grpc.agent.loader import load_object

NAME = "LITELLM_LOCAL_MODEL_COST_MAP"


@pytest.mark.parametrize(("given", "seen"), [(None, "True"), ("False", "False"), ("", "")])
def test_the_code_of_an_agent_sees_the_variable_unless_the_user_has_set_it(given, seen, tmp_path, monkeypatch):
    monkeypatch.setenv(NAME, "")  # the test restores the variable
    if given is None:
        monkeypatch.delenv(NAME)
    else:
        monkeypatch.setenv(NAME, given)
    name = f"sees_prices_{given}"
    (tmp_path / f"{name}.py").write_text(f"import os\n\nSEEN = os.environ.get({NAME!r})\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_object(f"{name}:SEEN") == seen
