"""What uv is told of pip's configuration."""

import os
import subprocess
import sys
from pathlib import Path

from ops.uv import environment


def test_nothing_is_said_without_a_configuration() -> None:
    assert environment("") == {}
    assert environment("global.timeout='60'\n") == {}


def test_indexes_and_certificates_are_passed_on() -> None:
    listed = """\
:env:.find-links='/wheels /more'
global.cert='/ca.crt'
global.extra-index-url='\\nhttps://one.test/simple\\nhttps://two.test/simple'
global.find-links='/other'
global.index-url="https://it's.test/simple"
"""
    assert environment(listed) == {
        "UV_DEFAULT_INDEX": "https://it's.test/simple",
        "UV_INDEX": "https://one.test/simple https://two.test/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels,/more",
        "SSL_CERT_FILE": "/ca.crt",
    }


def test_uv_is_run_for_this_environment(tmp_path: Path) -> None:
    """What uv's own variables say counts more than pip's configuration."""
    uv = tmp_path / "uv"
    uv.write_text('#!/bin/sh\necho "$@" "$UV_DEFAULT_INDEX" "$UV_FIND_LINKS" "$VIRTUAL_ENV"\n')
    uv.chmod(0o755)
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://pip.test/simple\nfind-links = /wheels\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path), "pip", "list"],
        env={
            "PATH": os.environ["PATH"],
            "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
            "UV_FIND_LINKS": "/mine",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == f"pip list https://pip.test/simple /mine {sys.prefix}\n"


RUN = """
import sys
from ops import uv
folder = sys.argv.pop(1)
listed = uv.configured()
uv.configured = lambda: listed
sys.executable = f"{folder}/python"  # where uv is looked for first
uv.main()
"""
