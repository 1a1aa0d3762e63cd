"""Messages of the WebSocket, and how streams are taken apart."""

import json

import pytest

from gateway.errors import BadRequest
from gateway.http import frames
from gateway.http.frames import (
    CancelFrame,
    KeyFrame,
    NotUnderstood,
    Pieces,
    RequestFrame,
    answer_frame,
    end_frame,
    event_frame,
    read_frame,
)


def test_what_a_client_may_say():
    asked = read_frame('{"type": "request", "id": "a", "path": "/v1/x", "body": {"b": [1]}}')
    assert asked == RequestFrame(type="request", id="a", path="/v1/x", body={"b": [1]})
    assert read_frame('{"type": "cancel", "id": "a"}') == CancelFrame(type="cancel", id="a")
    assert read_frame('{"type": "key", "key": "sk"}') == KeyFrame(type="key", key="sk")


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "{}", '{"type": "other"}', '{"type": "cancel"}'),
        '{"type": "cancel", "id": ""}',
        '{"type": "cancel", "id": "a", "more": 1}',
        '{"type": "key", "key": "a b"}',
        '{"type": "key", "key": "a\\r\\nHost: b"}',
        '{"type": "request", "id": "a", "path": "v1", "body": {}}',
        '{"type": "request", "id": "a", "path": "/v1 /x", "body": {}}',
        '{"type": "request", "id": "a", "path": "/v1/x", "body": []}',
        '{"type": "request", "id": "a", "path": "/v1/x", "body": ' + "[" * 10000,
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(BadRequest, match="not understood") as refused:
        read_frame(text)
    assert len(refused.value.message) < 400


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        ('{"type": "request", "id": "a", "path": "v1", "body": {}}', "a"),
        ('{"type": "request", "id": "❄", "path": "/v1/x"}', "❄"),
        ('{"id": "a"}', "a"),
        ('{"type": "request", "id": ""}', None),
        ('{"type": "request", "id": ["a"]}', None),
        (json.dumps({"type": "request", "id": "a" * 65}), None),
        ('{"type": "cancel", "id": "a", "why": "b"}', None),  # the request goes on
        ('["id"]', None),
        ('{"id": "a"', None),
    ],
)
def test_a_refusal_has_the_id_that_can_be_read(text, id_):
    with pytest.raises(NotUnderstood) as refused:
        read_frame(text)
    assert refused.value.id == id_
    assert ": :" not in refused.value.message


@pytest.mark.parametrize("text", ["[]", "1", '{"type": "request", "id": "a", "path": "/v1/x", "body": []}'])
def test_what_is_no_object_is_told_so_in_words_of_json(text):
    with pytest.raises(NotUnderstood, match=r"Input should be an object\.$"):
        read_frame(text)


def test_numbers_and_halves_of_characters_are_as_in_other_bodies():
    def body(said):
        return '{"type": "request", "id": "a", "path": "/v1/x", "body": {"b": ' + said + "}}"

    assert read_frame(body(r'"\ud83d"')).body == {"b": "\ufffd"}
    with pytest.raises(NotUnderstood):
        read_frame(body("NaN"))


@pytest.mark.parametrize("parts", ["[]", '{"":{}}', '""'])
def test_parts_are_counted_before_anything_is_made_of_them(parts, monkeypatch):
    monkeypatch.setattr(frames, "_FRAMES", None)
    many = ",".join([parts] * 2**17)
    text = '{"type": "request", "id": "a", "path": "/v1/x", "body": {"b": [' + many + "]}}"
    with pytest.raises(BadRequest, match="more than"):
        read_frame(text)


def test_what_is_said_is_json():
    odd = 'a"\\\n'
    for frame in (event_frame(odd, "{}", "named"), answer_frame(odd, 200, "{}"), end_frame(odd, True)):
        assert json.loads(frame)["id"] == odd
    assert json.loads(event_frame("a", "1")) == {"type": "event", "id": "a", "data": 1}


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_stream_is_taken_apart_wherever_it_is_cut(size):
    def taken(pieces: Pieces, text: str) -> list[tuple[str | None, str]]:
        whole = text.encode()
        cut = [whole[start : start + size] for start in range(0, len(whole), size)]
        return [found for piece in cut for found in pieces.add(piece)]

    events = 'data: {"a": "❄: x"}\n\nevent: e\ndata: 2\n\ndata: [DONE]\n\n'
    assert taken(Pieces("text/event-stream"), events) == [(None, '{"a": "❄: x"}'), ("e", "2")]
    assert taken(Pieces("application/x-ndjson"), '{"a":1}\n{"b":"❄"}\n') == [
        (None, '{"a":1}'),
        (None, '{"b":"❄"}'),
    ]
