from pathlib import Path

import pytest

from ops.model_directory.lora_modules import MOST, named, parse, written


def test_names_and_directories() -> None:
    found = parse("sql=/adapters/sql 'poet=/my adapters/poet'\norg/x:1=org/x")
    assert found == {
        "sql": Path("/adapters/sql"),
        "poet": Path("/my adapters/poet"),
        "org/x:1": Path("org/x"),
    }
    assert parse(written(found)) == found
    assert parse("") == {}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("sql", "'sql' is not NAME=DIRECTORY"),
        ("=x", "'=x' is not NAME=DIRECTORY"),
        ("sql=", "'sql=' is not NAME=DIRECTORY"),
        ("a,b=x", "'a,b=x' is not NAME=DIRECTORY"),
        ("a=x a=y", "two adapters are called 'a'"),
        ("a='x", "No closing quotation"),
    ],
)
def test_what_is_wrong(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse(text)


def test_too_many() -> None:
    named(f"a{number}=x" for number in range(MOST))
    with pytest.raises(ValueError, match="257 adapters are more than 256"):
        named(f"a{number}=x" for number in range(MOST + 1))
