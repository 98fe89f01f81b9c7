"""Every declaration of the proto files has a comment in plain words."""

from tests.protocol.wire.proto_comments import FILES, comments, descriptors


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
