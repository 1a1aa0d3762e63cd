"""How many drafts a sequence gets next."""

from scheduler_svc.core.draft_state import DraftState


def test_drafts_grow_while_they_hold_and_pause_while_they_fail() -> None:
    state = DraftState(8)
    assert state.length == 4
    for _ in range(4):
        state.judge(state.length, state.length, 0, 10)
    assert state.length == 8
    state.judge(8, 2, 0, 10)
    assert state.length == 5
    assert state.resumes == 0
    for tokens, resumes in ((11, 13), (13, 17), (17, 25), (25, 41), (41, 73), (73, 105)):
        state.judge(state.length, 0, 0, tokens)
        assert state.resumes == resumes
    assert state.length == 1
    state.judge(1, 1, 0, 105)
    state.judge(3, 0, 0, 106)
    assert state.resumes == 108


def test_drafts_that_hold_must_be_enough() -> None:
    state = DraftState(8)
    state.judge(4, 2, 2.0, 10)
    assert state.resumes == 0
    state.judge(4, 2, 2.1, 13)
    assert state.resumes == 15
    state.judge(4, 3, 2.1, 18)
    state.judge(4, 0, 0, 19)
    assert state.resumes == 21
