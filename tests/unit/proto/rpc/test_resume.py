"""When a call is worth another try."""

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from proto.rpc.resume import LOST, OUTSIDE, TRIES, Resumption, attempt_of


def error(code: grpc.StatusCode, *trailing: tuple[str, str]) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(*trailing))


UNAVAILABLE = error(grpc.StatusCode.UNAVAILABLE)
DEATH = error(grpc.StatusCode.UNAVAILABLE, (LOST, "worker-1"))


def test_deaths_count_until_there_is_progress() -> None:
    resumption = Resumption()
    assert resumption.metadata() == ()
    resumption.retry_or_raise(DEATH)
    assert attempt_of(resumption.metadata()) == 1
    resumption.retry_or_raise(DEATH)
    assert attempt_of(resumption.metadata()) == 2
    resumption.progressed()
    assert resumption.metadata() == ()


@pytest.mark.parametrize("why", [((OUTSIDE, "stopped"),), ((LOST, "worker-1"), (OUTSIDE, "killed"))])
def test_what_comes_from_outside_never_counts(why: tuple[tuple[str, str], ...]) -> None:
    resumption = Resumption()
    resumption.retry_or_raise(DEATH)
    for _ in range(5 * TRIES):
        resumption.retry_or_raise(error(grpc.StatusCode.UNAVAILABLE, *why))
    assert attempt_of(resumption.metadata()) == 1


def test_another_status_is_final_wherever_it_comes_from() -> None:
    with pytest.raises(AioRpcError):
        Resumption().retry_or_raise(error(grpc.StatusCode.INTERNAL, (OUTSIDE, "stopped")))


def test_a_server_that_leaves_costs_no_life() -> None:
    resumption = Resumption()
    resumption.retry_or_raise(UNAVAILABLE)
    assert resumption.metadata() == ()


def test_failures_without_progress_come_to_an_end() -> None:
    resumption = Resumption()
    for _ in range(TRIES - 1):
        resumption.retry_or_raise(UNAVAILABLE)
    with pytest.raises(AioRpcError):
        resumption.retry_or_raise(UNAVAILABLE)


@pytest.mark.parametrize("code", [grpc.StatusCode.ABORTED, grpc.StatusCode.INVALID_ARGUMENT])
def test_other_errors_are_final(code: grpc.StatusCode) -> None:
    with pytest.raises(AioRpcError):
        Resumption().retry_or_raise(error(code))


@pytest.mark.parametrize(
    ("value", "attempt"), [("1", 1), ("x", 0), ("-1", 0), ("", 0), ("²", 0), ("٣", 0), ("9" * 5000, 0)]
)
def test_attempt_of(value: str, attempt: int) -> None:
    assert attempt_of((("quire-attempt", value),)) == attempt
    assert attempt_of(()) == 0
