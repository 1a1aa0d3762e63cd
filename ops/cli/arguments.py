"""Commands, and kinds of arguments that several of them take."""

import argparse
from typing import Any


def add_command(subcommands: Any, name: str, help: str, description: str) -> argparse.ArgumentParser:
    """Add a command. Its description is shown as it is, line breaks included."""
    form = argparse.RawDescriptionHelpFormatter
    added: argparse.ArgumentParser = subcommands.add_parser(
        name, help=help, description=description, formatter_class=form
    )
    return added


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, with commas between them."""
    return tuple(map(positive, text.split(",")))


def span(text: str) -> tuple[int, int]:
    """The least and the most, as N:M, or N for both."""
    least, _, most = text.partition(":")
    ends = positive(least), positive(most or least)
    if ends[0] > ends[1]:
        raise argparse.ArgumentTypeError("the least first, then the most")
    return ends
