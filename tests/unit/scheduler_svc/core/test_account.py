"""Counters of tenants and users."""

from scheduler_svc.core.account import MOST_LEFT, Account


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
    parent.level(new, 50)
    assert [each.served(60) for each in new] == [50, 50]
    first = Account("first", parent)
    parent = first.parent = Account()
    parent.level([first], 70)
    assert first.served(70) == 0, "as the first of all"


def test_a_new_member_begins_where_one_stands_that_takes_turns() -> None:
    """However long nobody who waits has got anything."""
    parent, slots, step = Account(), 2, 10
    members = [Account(str(number), parent, number) for number in range(8)]
    for each in members:
        each.enter(step)
    parent.level(members, step)
    for holder in members[:slots]:
        holder.take_slots(1, step)
    for holder in members[:slots]:
        holder.charge(80)
    new = Account("new", parent, 8)
    new.enter(step + 40)
    parent.level([new], step + 41)
    assert new.served(step + 41) == 40 * slots // 8
    assert new.start_tag == 2 * 80 / 8
    assert [each.served(step + 41) for each in members[slots:]] == [0] * 6


def test_turns_are_counted_whenever_another_gets_a_slot() -> None:
    parent = Account()
    one, other, third, new = (Account(name, parent) for name in ("one", "other", "third", "new"))
    for each in (one, other, third):
        each.enter(0)
    one.take_slots(1, 30)
    other.take_slots(1, 60)
    new.enter(90)
    parent.level([new], 91)
    assert new.served(91) == 30 * 0 / 3 + 30 * 1 / 3 + 30 * 2 / 3


def test_when_all_have_left_nothing_is_remembered() -> None:
    parent = Account()
    last = Account("last", parent)
    last.enter(0)
    last.charge(100)
    last.leave(5)
    parent.forget((), 32, 32)
    assert not parent.left


def test_what_was_had_before_leaving_counts_until_others_have_had_as_much() -> None:
    parent = Account()
    for name in ("stays", "goes"):
        parent.members[name] = Account(name, parent)
    stays, goes = parent.members.values()
    for each in (stays, goes):
        each.take_slots(1, 0)
    goes.charge(500)
    stays.take_slots(-1, 10)
    goes.take_slots(-1, 40)
    goes.leave(40)
    assert (parent.members, parent.left) == ({"stays": stays}, {"goes": goes})
    parent.level([goes], 40)
    assert (goes.served(40), stays.served(40), goes.start_tag) == (40, 10, 500)
    stays.take_slots(1, 40)
    parent.forget((), 60, 32)
    assert parent.left == {"goes": goes}
    stays.charge(100)
    stays.charge(500)
    parent.forget((), 80, 32)
    assert parent.left == {"goes": goes}, "its prompts count"
    stays.charge(1)
    parent.forget((), 80, 32)
    assert parent.left == {}


def test_of_those_that_have_left_the_latest_are_remembered() -> None:
    parent = Account()
    for number in range(MOST_LEFT + 10):
        each = Account(str(number), parent)
        each.enter(0)
        each.charge(100)
        each.leave(0)
    assert list(parent.left) == [str(10 + number) for number in range(MOST_LEFT)]


def test_what_was_had_long_ago_is_forgotten() -> None:
    parent = Account()
    for name in ("little", "much"):
        parent.members[name] = Account(name, parent)
    little, much = parent.members.values()
    little.take_slots(1, 0)
    much.take_slots(7, 0)
    parent.forget((), 100, 32)
    assert (little.served(100), much.served(100)) == (100, 100 + 2 * 32 * 8)
    parent.forget((), 1000, 32)
    assert (little.served(1000), much.served(1000)) == (1000, 1000 + 2 * 32 * 8)
    much.take_slots(-7, 1000)
    parent.forget((), 1000, 32)
    assert much.served(1000) == 1000 + 2 * 32 * 2


def test_prompts_take_turns_by_their_tokens() -> None:
    parent = Account()
    one, other = Account("one", parent, 1), Account("other", parent, 2)
    for each in (one, other):
        each.enter(0)
    order = []
    for _ in range(6):
        first = min(one, other, key=lambda each: each.start_tag)
        first.charge(100 if first is one else 300)
        order.append(first.name)
    assert order.count("one") == 4


def test_prompt_tokens_that_were_not_asked_for_cannot_be_claimed_later() -> None:
    parent = Account()
    steady, idle = Account("steady", parent, 1), Account("idle", parent, 2)
    for each in (steady, idle):
        each.enter(0)
    for _ in range(100):
        steady.charge(500)
    idle.charge(500)
    assert idle.start_tag >= steady.start_tag - 500
