"""A hub of models: what huggingface_hub asks of the real one, answered from a folder.

python -m tests.support.hub FOLDER ADDRESS PORT     one that stays
"""

import hashlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
Headers = dict[str, str]
REVISIONS = ("main", "v2", COMMIT)


class Hub:
    """Serves `root/org/name/` as the model `org/name`, whose only commit has the names `REVISIONS`."""

    def __init__(self, root: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        """`port`: 0: a free one."""
        self.root = root
        self.sent: Counter[str] = Counter()
        """How often each file was sent, by its path under the root."""
        self.gated: set[str] = set()
        self.status = 200
        """Of answers; others than 200 are all that it says."""
        self.commits = [COMMIT]
        """What `main` names, each time that it is asked for; the last one from then on."""
        self.tokens: set[str] = set()
        """What came as Authorization."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer((host, port), Handler)
        self.url = f"http://{host}:{self.server.server_port}"

    def answer(self, handler: BaseHTTPRequestHandler, body: bool) -> None:
        self.tokens.add(handler.headers.get("authorization", ""))
        parts = unquote(urlsplit(handler.path).path).strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        org, name, *rest = parts[2:] if api else parts
        model = f"{org}/{name}"
        revision = rest[1] if len(rest) > 1 else "main"
        if self.status != 200:
            unknown = {"X-Error-Message": "Invalid credentials in Authorization header"}
            self._reply(handler, self.status, b"", unknown if self.status == 401 else {}, body)
        elif not (self.root / model).is_dir():
            self._reply(handler, 404, b"", {"X-Error-Code": "RepoNotFound"}, body)
        elif model in self.gated:
            self._reply(handler, 403, b"", {"X-Error-Code": "GatedRepo"}, body)
        elif revision not in (*REVISIONS, *self.commits):
            self._reply(handler, 404, b"", {"X-Error-Code": "RevisionNotFound"}, body)
        elif api:
            content = self._tree(model) if rest[:1] == ["tree"] else self._info(model)
            self._reply(
                handler, 200, json.dumps(content).encode(), {"Content-Type": "application/json"}, body
            )
        else:
            self._send(handler, self.root / model / "/".join(rest[2:]), revision, body)

    def _info(self, model: str) -> dict[str, Any]:
        commit = self.commits.pop(0) if len(self.commits) > 1 else self.commits[0]
        return {"id": model, "sha": commit, "siblings": []}

    def _tree(self, model: str) -> list[dict[str, Any]]:
        folder = self.root / model
        return [
            {
                "type": "file",
                "path": str(path.relative_to(folder)),
                "size": path.stat().st_size,
                "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
            }
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        ]

    def _send(self, handler: BaseHTTPRequestHandler, path: Path, revision: str, body: bool) -> None:
        if not path.is_file():
            self._reply(handler, 404, b"", {"X-Error-Code": "EntryNotFound"}, body)
            return
        content = path.read_bytes()
        tag = hashlib.sha1(content).hexdigest()
        commit = revision if len(revision) == len(COMMIT) else COMMIT
        if body:
            self.sent[str(path.relative_to(self.root))] += 1
        self._reply(handler, 200, content, {"ETag": f'"{tag}"', "X-Repo-Commit": commit}, body)

    def _reply(
        self, handler: BaseHTTPRequestHandler, status: int, content: bytes, headers: Headers, body: bool
    ) -> None:
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if body:
            handler.wfile.write(content)


@contextmanager
def serving(root: Path) -> Iterator[Hub]:
    """A hub that answers while the block runs."""
    hub = Hub(root)
    thread = threading.Thread(target=hub.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        thread.join()
        hub.server.server_close()


if __name__ == "__main__":
    Hub(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])).server.serve_forever()
