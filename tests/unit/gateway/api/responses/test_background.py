"""What ends a background response. `tests/unit/gateway/jobs/test_background.py` has them made."""

import pytest

from gateway.api.responses.background import failed, last_event


@pytest.mark.parametrize(
    ("status", "event"),
    [
        ("completed", "response.completed"),
        ("incomplete", "response.incomplete"),
        ("failed", "response.failed"),
        ("cancelled", "response.incomplete"),
    ],
)
def test_every_end_has_an_event_that_clients_know(status, event):
    response = {"id": "resp_1", "status": status}
    assert last_event(response, 7) == {"type": event, "sequence_number": 7, "response": response}


def test_a_failure_keeps_the_rest():
    found = failed({"id": "resp_1", "status": "queued", "error": None}, "server_error", "It broke.")
    assert found == {
        "id": "resp_1",
        "status": "failed",
        "error": {"code": "server_error", "message": "It broke."},
    }
