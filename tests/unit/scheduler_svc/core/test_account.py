"""Counters of tenants and users."""

from scheduler_svc.core.account import Account


def test_slots_are_served_by_the_step() -> None:
    account = Account("a", Account())
    account.take_slots(2, 10)
    account.take_slots(1, 15)
    assert account.served(15) == 10
    account.take_slots(-3, 20)
    assert (account.slots, account.served(20), account.served(100)) == (0, 25, 25)


def test_who_has_fewest_slots_claims_first_and_then_who_had_fewest() -> None:
    parent = Account()
    one, other = Account("one", parent, 1), Account("other", parent, 2)
    assert one.claim < other.claim
    one.take_slots(1, 5)
    assert other.claim < one.claim
    other.take_slots(1, 8)
    assert other.claim < one.claim
    one.take_slots(-1, 9)
    assert one.claim < other.claim


def test_a_new_member_counts_as_served_as_little_as_any() -> None:
    parent = Account()
    for name in ("much", "little", "new", "as new"):
        parent.members[name] = Account(name, parent)
    much, little, *new = parent.members.values()
    much.take_slots(3, 0)
    little.take_slots(1, 0)
    for each in new:
        each.level(new, 50)
    assert [each.served(60) for each in new] == [50, 50]
    parent.members = {each.name: each for each in new}
    new[0].level(new, 70)
    assert new[0].served(70) == 0, "as the first of all"


def test_prompts_take_turns_by_their_tokens() -> None:
    parent = Account()
    one, other = Account("one", parent, 1), Account("other", parent, 2)
    order = []
    for _ in range(6):
        first = min(one, other, key=lambda each: each.start_tag)
        first.charge(100 if first is one else 300)
        order.append(first.name)
    assert order.count("one") == 4


def test_prompt_tokens_that_were_not_asked_for_cannot_be_claimed_later() -> None:
    parent = Account()
    steady, idle = Account("steady", parent, 1), Account("idle", parent, 2)
    for _ in range(100):
        steady.charge(500)
    idle.charge(500)
    assert idle.start_tag >= steady.start_tag - 500
