"""What the README shows comes out as it says."""

import re
import subprocess
from pathlib import Path

from tests.support.deployment import Deployment

README = (Path(__file__).parents[2] / "README.md").read_text()
SHOWN = re.search(
    r"## What sharing saves\n.*?```sh\n(?P<script>.*?)```\s*```\n(?P<said>.*?)```", README, re.S
)


def test_sharing_saves_what_it_says(deployment: Deployment) -> None:
    assert SHOWN is not None
    script = SHOWN["script"].replace("http://127.0.0.1:8000", deployment.url)
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == SHOWN["said"]
