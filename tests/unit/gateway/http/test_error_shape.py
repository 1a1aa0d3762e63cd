"""Errors in the shapes of several APIs."""

import json

import pytest

from gateway.errors import BadRequest, GatewayError, Overloaded, TooSlow, Unavailable
from gateway.http.error_shape import anthropic_type, last_words, refusal

STATE = {"request_id": "r"}


def scope(path):
    return {"type": "http", "path": path, "state": STATE}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/tokenize", "/nowhere", "/"])
def test_usual_errors_are_openais(path):
    error = BadRequest("No.", param="p", code="c")
    whole = {"error": {"message": "No.", "type": "invalid_request_error", "param": "p", "code": "c"}}
    response = refusal(error, scope(path))
    assert (response.status_code, json.loads(response.body)) == (400, whole)
    assert last_words(error, scope(path)) == f"data: {json.dumps(whole)}\n\n"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/"])
def test_anthropics(path):
    whole = {"type": "error", "error": {"type": "rate_limit_error", "message": "Wait."}, "request_id": "r"}
    response = refusal(Overloaded("Wait."), scope(path))
    assert (response.status_code, json.loads(response.body)) == (429, whole)
    assert response.headers["retry-after"] == "1"
    assert last_words(Overloaded("Wait."), scope(path)) == f"event: error\ndata: {json.dumps(whole)}\n\n"


@pytest.mark.parametrize("path", ["/embed", "/info"])
def test_those_of_text_embeddings_inference(path):
    kinds = {BadRequest("'input[0]' is empty."): "Validation", Overloaded("Wait."): "Overloaded"}
    for error, kind in kinds.items():
        found = json.loads(refusal(error, scope(path)).body)
        assert found == {"error": error.message.replace("input", "inputs"), "error_type": kind}


def test_anthropics_clients_go_on_without_a_thread():
    error = BadRequest("'thread' is not supported.", param="thread", code="unsupported_parameter")
    found = json.loads(refusal(error, scope("/v1/messages")).body)["error"]
    assert found["details"] == {"error_code": "thread_unsupported_request"}
    other = BadRequest("'container' is not supported.", param="container", code="unsupported_parameter")
    assert "details" not in json.loads(refusal(other, scope("/v1/messages")).body)["error"]


def test_of_responses():
    error = BadRequest("'max_tokens' and 'messages'.", param="messages[0].content", code="c")
    found = json.loads(refusal(error, scope("/v1/responses")).body)["error"]
    assert (found["message"], found["param"]) == ("'max_output_tokens' and 'input'.", "input")
    assert json.loads(refusal(Unavailable("Gone."), scope("/v1/responses")).body)["error"]["param"] is None


def test_ollamas():
    response = refusal(Unavailable("Gone."), scope("/api/chat"))
    assert (response.status_code, json.loads(response.body)) == (503, {"error": "Gone."})
    assert last_words(TooSlow("Slow."), scope("/api/chat")) == '{"error": "Slow."}\n'


def test_every_error_has_a_type_of_anthropics():
    known = {
        *("invalid_request_error", "authentication_error", "permission_error", "not_found_error"),
        *("request_too_large", "rate_limit_error", "api_error", "overloaded_error", "timeout_error"),
    }

    def kinds(kind):
        yield kind
        for other in kind.__subclasses__():
            yield from kinds(other)

    found = {anthropic_type(kind.status) for kind in kinds(GatewayError)}
    assert found == known
