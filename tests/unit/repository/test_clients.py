"""Every client that `make clients` tries has what it needs, and stands in the documentation."""

import re
from pathlib import Path

import pytest

from tests.clients.clients import CLIENTS, Client

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "tests" / "clients"


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_it_has_a_script_and_pinned_versions(client: Client) -> None:
    assert (FOLDER / "scripts" / client.script).is_file()
    assert f"`{client.name}`" in (ROOT / "docs" / "use.md").read_text()
    if client.node:
        assert all(re.fullmatch(r"@?[\w./-]+@[\d.]+", each) for each in client.requirements)
    if client.node or not client.requirements:
        return
    pinned = dict(
        line.split("==") for line in (FOLDER / "locks" / f"{client.name}.txt").read_text().splitlines()
    )
    for requirement in client.requirements:
        name, _, version = re.sub(r"\[.*\]", "", requirement).partition("==")
        assert version in ("", pinned[name])


def test_nothing_is_left_of_a_client_that_is_gone() -> None:
    scripts = {path.name for path in (FOLDER / "scripts").glob("with_*")}
    locks = {path.stem for path in (FOLDER / "locks").iterdir()}
    assert scripts == {client.script for client in CLIENTS}
    assert locks == {client.name for client in CLIENTS if client.requirements and not client.node}
