"""The page's scripts, run by Node.js."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import gateway.page

FOLDER = Path(gateway.page.__file__).parent
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="there is no Node.js")


def evaluated(folder: Path, module: str, expression: str, given: object) -> Any:
    """The value of an expression in JavaScript.

    `folder`: where copies of the scripts are put. `module`: one of the page's scripts, whose exports are
    `page` in the expression. `given`: a value that is `given` in it.
    """
    assert NODE is not None
    for file in FOLDER.glob("*.js"):
        shutil.copy(file, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    script = (
        f"import * as page from './{module}';"
        "import {readFileSync} from 'node:fs';"
        "const given = JSON.parse(readFileSync(0, 'utf8'));"
        f"console.log(JSON.stringify({expression}));"
    )
    (folder / "run.js").write_text(script)
    done = subprocess.run(
        [NODE, "run.js"], cwd=folder, input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
