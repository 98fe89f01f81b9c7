"""The names and shapes of protocol v1 in the descriptors."""

import pytest
from google.protobuf.descriptor import FieldDescriptor

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import (
    annotation_pb2,
    attach_pb2,
    chat_pb2,
    control_pb2,
    error_pb2,
    event_pb2,
    message_pb2,
    outcome_pb2,
    rollout_pb2,
    services_pb2,
    tokens_pb2,
)

MODULES = (
    annotation_pb2,
    attach_pb2,
    chat_pb2,
    control_pb2,
    error_pb2,
    event_pb2,
    message_pb2,
    outcome_pb2,
    rollout_pb2,
    services_pb2,
    tokens_pb2,
)
MESSAGES = {m.name: m for module in MODULES for m in module.DESCRIPTOR.message_types_by_name.values()}
ENUMS = {e.name: e for module in MODULES for e in module.DESCRIPTOR.enum_types_by_name.values()}
FIELDS = {(name, field.name): field for name, message in MESSAGES.items() for field in message.fields}


def test_an_outcome_is_no_completion():
    assert {"RolloutOutcome", "CompleteRequest"} <= MESSAGES.keys()
    assert [value.name.removeprefix("RECEIPT_") for value in ENUMS["Receipt"].values] == [
        "UNSPECIFIED",
        "RECORDED",
        "ALREADY_RECORDED",
        "CONFLICT",
    ]
    assert not {"Completion", "CompletionStatus", "CompleteOutcome"} & (MESSAGES.keys() | ENUMS.keys())
    words = {name for _, name in FIELDS} - {"completion_tokens"}  # OpenAI's word in Usage
    assert not [name for name in words if "completion" in name]
    assert MESSAGES["CompleteRequest"].fields_by_name["outcome"].message_type.name == "RolloutOutcome"
    assert MESSAGES["CompleteResponse"].fields_by_name["receipt"].enum_type.name == "Receipt"


def test_the_rpcs_keep_their_names():
    services = services_pb2.DESCRIPTOR.services_by_name
    rpcs = {name: [method.name for method in service.methods] for name, service in services.items()}
    assert rpcs["TrainerService"] == ["Chat", "Complete", "AbandonChat", "Accept"]
    assert {"Init", "Cancel", "Attach", "Annotate"} <= set(rpcs["RolloutService"])


OLD = {"number", "continues", "process_uuid", "since", "messages_after", "uuid"}
NEW = {
    "chat_number": {"ChatRequest", "ChatReply", "UnknownChat", "ChatAnsweredEvent", "ToolCalledEvent"},
    "event_number": {"TrajectoryEvent"},
    "parent_chat": {"FullHistory", "DeltaHistory", "ChatRequestedEvent"},
    "process_id": {"TrainerHello", "ServerHello", "GetServerInfoResponse"},
    "start_time": {"Rollout", "GetServerInfoResponse", "Activity"},
}


def test_one_word_for_each_idea():
    assert not [(message, name) for message, name in FIELDS if name in OLD]
    for name, messages in NEW.items():
        assert messages <= {message for message, field in FIELDS if field == name}, name
    files = {module.DESCRIPTOR.name.rpartition("/")[2] for module in MODULES}
    assert "chat.proto" in files
    assert "trainer.proto" not in files


def test_order_and_presence_are_in_the_shapes():
    samples = FIELDS["RolloutOutcome", "samples"]
    assert (samples.message_type.name, samples.is_repeated) == ("Sample", True)
    assert ("Sample", "name") in FIELDS
    for window in (("TrainerHello", "max_open_chats"), ("ServerHello", "max_open_rollouts")):
        assert FIELDS[window].has_presence
    booleans = [key for key, f in FIELDS.items() if f.type == FieldDescriptor.TYPE_BOOL and f.containing_oneof]
    assert all(FIELDS[key].containing_oneof.name.startswith("_") for key in booleans), "only `optional bool`"
    assert FIELDS["Message", "null_content"].message_type.name == "NullContent"
    assert FIELDS["CancelRequest", "all"].message_type.name == "AllRollouts"


@pytest.mark.parametrize("message", ["ToolCalledEvent", "ToolReturnedEvent", "LoggedEvent"])
def test_tool_and_log_events_have_sample_and_chat_number(message):
    assert {"sample", "chat_number"} <= {field.name for field in MESSAGES[message].fields}


@pytest.mark.parametrize("message", ["TrainerHello", "ServerHello", "GetServerInfoResponse", "Callback"])
def test_each_side_lists_its_features_and_its_protocol(message):
    fields = MESSAGES[message].fields_by_name
    assert fields["features"].is_repeated
    assert fields["features"].type == FieldDescriptor.TYPE_STRING
    assert "protocol" in fields or {"protocol_min", "protocol_max"} <= set(fields.keys())


def test_a_failure_has_a_reason_and_the_place_in_the_agents_code():
    assert {"reason", "file", "line", "frames"} <= set(MESSAGES["Failure"].fields_by_name)


def test_the_limits_are_in_the_hello_and_in_the_servers_description():
    for message in ("ServerHello", "GetServerInfoResponse"):
        assert FIELDS[message, "limits"].message_type.name == "Limits"


def test_the_frames_that_end_work_in_good_order():
    assert {"abandon_chat", "goodbye"} <= set(MESSAGES["ServerFrame"].fields_by_name)
    assert "goodbye" in MESSAGES["TrainerFrame"].fields_by_name


def test_a_callback_may_ask_for_outcomes_by_reference():
    assert FIELDS["Callback", "outcome_by_reference"].type == FieldDescriptor.TYPE_BOOL


def test_fork_names_a_chat_of_another_rollout():
    fork = FIELDS["RolloutSpec", "fork"].message_type
    assert {field.name for field in fork.fields} == {"rollout_id", "attempt", "chat"}
    assert fork.fields_by_name["chat"].message_type.name == "ChatRef"
