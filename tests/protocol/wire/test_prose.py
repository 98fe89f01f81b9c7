"""The facts that a trainer's author needs are in the comments of the declarations that they concern."""

from tests.protocol.wire.proto_comments import FILES, comments, descriptors


def says(name: str, *sentences: str) -> None:
    """Asserts that the comment of a declaration has these sentences."""
    comment = comments()[name]
    for sentence in sentences:
        assert sentence in comment, f"{name} does not say: {sentence}"


def test_a_segment_grows_from_its_newest_chat():
    says(
        "Segment",
        "A segment grows from its newest chat only.",
        "If two chats continue the same chat, the one with the lower number extends the segment, and the other begins "
        "a new segment.",
    )


def test_only_the_chats_that_segments_name_are_trained_on():
    says(
        "Segment",
        "Train on the chats that `chats` names, and on no others.",
        "A reply that did not reach the agent is in no segment. So the masks may add up to fewer tokens than were "
        "sampled.",
    )


def test_a_chat_may_arrive_before_the_answer_to_its_init():
    says(
        "ChatRequest.tools",
        "Over a callback they are always set.",
        "A chat may arrive before the answer to its Init, and does so after some breaks. A trainer keeps such a chat "
        "until the answer has arrived.",
    )


def test_how_long_a_chat_stays_open_and_when_it_is_asked_again():
    says(
        "TrainerService.Chat",
        "The call stays open until there is a reply, for Limits.chat_silence at most. Then the server asks again under "
        "the same number.",
        "with pauses of Limits.chat_retry_min to Limits.chat_retry_max.",
        "If the trainer stays away for longer than Limits.trainer_grace, the rollout ends FAILED with the boundary "
        "TRAINER and the reason TRAINER_UNREACHABLE.",
        "ends the rollout FAILED with the reason CHAT_REFUSED unless the agent handles it.",
    )


def test_what_a_trainer_answers_for_an_unknown_rollout():
    says(
        "TrainerService.Chat",
        "A trainer answers a chat of a rollout that it does not know with NOT_FOUND. It answers a chat after the "
        "outcome with FAILED_PRECONDITION",
    )
    says(
        "TrainerService.Complete",
        "A trainer answers the outcome of an unknown rollout with UNAVAILABLE and RetryInfo while one of its callers "
        "may still claim the rollout, and with INVALID_ARGUMENT if it never started it.",
    )


def test_the_values_of_prompt_prefix():
    says(
        "ChatResponse.prompt_prefix",
        "It is at most the number of tokens of that chat.",
        "0 is always allowed",
        "If the chat continues none, it is 0.",
    )


def test_version_spans_and_segments_without_ids():
    says(
        "VersionSpan.tokens",
        "If a list has one span only, its count is ignored and the span covers all tokens. Otherwise the counts add up "
        "to the number of sampled tokens.",
    )
    says("Segment.ids", "A segment without ids has no logprobs, no versions and no extras.")
    says(
        "Segment.mask_runs", "The runs add up to the number of tokens of the segment, whether or not `ids` is left out."
    )


def test_samples_that_are_not_trainable_and_judge_chats():
    says("Sample.segments", "Empty if the sample is not trainable.")
    says("Sample.trainable", "NaN counts as a missing logprob.")
    says(
        "Sample",
        "Chats with the purpose JUDGE belong to no segment and do not affect `trainable`. A sample that has only such "
        "chats is left out of the outcome.",
    )


def test_hellos_and_open_rollouts():
    says(
        "attach.proto",
        "The opener sends its hello first, alone in its message.",
        "After both hellos the trainer lists the rollouts that it still waits for in OpenRollouts. It leaves the frame "
        "out if there are none. Inits need not wait for the answer.",
    )


def test_the_stream_of_a_reply_and_attaching_again():
    says("ChatReply", "It is sent on the stream that asked last.")
    says(
        "attach.proto",
        "A chat that was sent again on a newer stream is answered on the newer stream.",
        "After such an end the trainer may attach again with the same id; the attachment's rollouts wait as after a "
        "break. Only ABORTED is final for a stream's owner",
    )


def test_the_slot_of_an_init_and_leaving():
    says(
        "attach.proto",
        "An Init is open until its outcome frame arrives; its slot is free from then on.",
        "A trainer that is done sends Goodbye and closes its side.",
    )


def test_what_a_listener_accepts():
    says(
        "Callback",
        "The listener accepts messages of 64 MiB (gRPC's default is 4 MiB), and HTTP/2 pings as often as "
        "`min_ping_interval` says.",
    )
    says("Callback.min_ping_interval", "Unset means 5 minutes, which is the default of gRPC servers.")
    says("TrainerService", "A trainer accepts messages of 64 MiB, and HTTP/2 pings at Callback.min_ping_interval.")


def test_sampling_parameters_and_replies():
    says("ChatRequest.sampling", "They are complete", "A trainer adds nothing from the spec.")
    says("ChatResponse.message", "Its role is assistant. Its content may be absent.")
    says("ChatResponse.finish_reason", "May be empty.")
    says("ChatResponse.usage", "May be unset.")
    says(
        "ChatResponse",
        "A reply that cannot be read, or that contradicts itself, ends the rollout FAILED with the boundary TRAINER "
        "and the reason REPLY_UNREADABLE.",
    )


def test_paths_of_omitted_fields_and_cancelling_all():
    says(
        "RolloutOutcome.omitted",
        "`samples[NAME].segments[INDEX]` (its ids, logprobs and extras), `samples[NAME].messages`, `extra_json`.",
    )
    says(
        "CancelRequest.all",
        "Without authentication all callers are one owner, so this cancels the rollouts of all callers.",
    )


def test_several_open_chats_of_one_sample():
    says("ChatRequest", "A sample may have several chats open at once, and their replies may arrive in any order.")


def test_an_equal_init_after_the_end():
    says(
        "InitReply",
        "An equal Init for a rollout that has ended is answered too, and its outcome is sent again over the attachment "
        "that asked. In this way any attachment of the same owner takes over a rollout.",
    )


def test_half_of_each_proto_file_is_prose():
    for path in FILES:
        lines = [line.strip() for line in path.read_text().splitlines() if line.strip()]
        prose = [line for line in lines if line.startswith("//")]
        assert 2 * len(prose) >= len(lines), f"{path.name}: {len(prose)} of {len(lines)} lines are comments"


def test_every_declaration_has_a_comment():
    known = comments()
    for file in descriptors():
        for message in file.message_type:
            assert known[message.name]
            for field in message.field:
                assert known[f"{message.name}.{field.name}"].endswith((".", ":")), f"{message.name}.{field.name}"
        for service in file.service:
            assert all(known[f"{service.name}.{method.name}"] for method in service.method)


def test_prose_has_none_of_the_words_that_hide_the_subject():
    hard = ("whoever", "those that", "that which", "stands in", "is told", " be it ", "nobody ")
    for name, comment in comments().items():
        found = [word for word in hard if word in comment.lower()]
        assert not found, f"{name}: {found}"
