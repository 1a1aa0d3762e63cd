"""What is missing is named, all of it, with the way to get it."""

import pytest

from ops.launcher.installed import NEEDED, check_installed
from ops.runtime.errors import UsageError


def test_the_packages_of_a_deployment_are_here() -> None:
    check_installed(NEEDED)


def test_all_that_is_missing_is_named_in_one_line() -> None:
    with pytest.raises(UsageError) as refused:
        check_installed(["torch", "no_such_package", "nor_this"])
    assert str(refused.value).startswith("not installed: no_such_package, nor_this; pip install 'quire[all]'")
    assert "\n" not in str(refused.value)
