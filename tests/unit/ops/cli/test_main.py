"""The command line by itself: help, arguments, where `quire chat` connects to."""

import argparse
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import gateway
from ops.cli.chat import session
from ops.cli.main import main, parser
from ops.launcher.acl import CHAIN
from ops.launcher.kept_keys import keep
from ops.launcher.served import Served
from ops.launcher.specs import Options, check_open, own_key, service_specs
from ops.launcher.welcome import first_request, welcome
from ops.model_directory.settings import SHIPPED_DRAFT, SHIPPED_PREDICTOR
from ops.runtime.errors import UsageError
from ops.runtime.settings import stream_prefix

SECRET = "sk-1-of-at-least-24-characters"
DRAFTING = ("QUIRE_SPECULATION", "QUIRE_DRAFT_MODEL")


@pytest.fixture(autouse=True)
def no_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("QUIRE_REDIS_URL", "QUIRE_PORT", "QUIRE_MODEL", "QUIRE_MODEL_NAME", "QUIRE_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("command", ["up", "status", "down", "keys", "chat"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out) > 200


def test_the_help_tells_of_every_command_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    (commands,) = [action.choices for action in parser()._actions if action.nargs == argparse.PARSER]
    assert commands
    for command in commands:
        assert f"  quire {command} " in said
        assert f"\n    {command} " not in said
    with pytest.raises(SystemExit):
        main(["keys", "list", "--help"])
    assert capsys.readouterr().out.startswith("usage: quire keys list ")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["up", "--workers", "0"],
        ["up", "--port", "70000"],
        ["up", "--port", "http"],
        ["up", "--device", "tpu"],
        ["up", "--dtype", "int3"],
        ["bench", "compare", "--start", "no command"],
        ["bench", "compare", "--shape", "135m", "--model", "."],
        ["bench", "compare", "--output", "9:3"],
    ],
)
def test_wrong_arguments_are_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_the_version_is_needed_only_by_who_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkout that is not installed has none."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert not ended.value.code
    assert capsys.readouterr().out == f"quire {version('quire')}\n"
    monkeypatch.setattr("ops.cli.main.version", None)
    assert main(["status"]) == 1


def test_a_port_from_the_environment_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_PORT", "0")
    with pytest.raises(SystemExit) as ended:
        main(["up"])
    assert ended.value.code == 2


def test_a_port_that_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["up", "--port", "http"])
    assert "invalid port value: 'http'" in capsys.readouterr().err


def test_a_setting_that_is_empty_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUIRE_HOST", "QUIRE_STOP_SECONDS", "QUIRE_STREAM_PREFIX", "QUIRE_DRAFT_MODEL"):
        monkeypatch.setenv(name, "")
    options = Options(speculation="draft")
    worker = service_specs(options, dict.fromkeys(CHAIN, "redis://127.0.0.1:1/0"))[0].environment
    found = (options.host, options.stop_seconds, stream_prefix(), worker["QUIRE_DRAFT_MODEL"])
    assert found == ("127.0.0.1", 5.0, "quire:", str(SHIPPED_DRAFT))


def test_status_without_a_deployment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 1
    assert "nothing runs" in capsys.readouterr().out


def test_chat_connects_to_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str | None]] = []
    monkeypatch.setattr(session, "chat", lambda url, model: calls.append((url, model)) or 0)
    assert main(["chat"]) == 0
    assert main(["chat", "--url", "http://127.0.0.1:8123/", "--model", "fox"]) == 0
    assert main(["chat", "--url", "http://127.0.0.1:8123/v1/"]) == 0
    elsewhere = "http://127.0.0.1:8123"
    assert calls == [("http://127.0.0.1:8000", None), (elsewhere, "fox"), (elsewhere, None)]


def test_an_output_without_room_is_one_line() -> None:
    command = [sys.executable, "-m", "ops.cli.main", "status"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "quire: No space left on device\n")


def test_the_welcome_fits_the_model(tmp_path: Path) -> None:
    plain = welcome(Options(models=(Served(tmp_path / "plain"),), port=8123))
    assert "http://127.0.0.1:8123/v1/completions" in plain
    assert "chat --url" in plain
    (tmp_path / "chatty").mkdir()
    (tmp_path / "chatty" / "chat_template.jinja").touch()
    chatty = welcome(Options(models=(Served(tmp_path / "chatty"),)))
    assert "http://127.0.0.1:8000/v1/chat/completions" in chatty
    encoder, classifier = tmp_path / "encoder", tmp_path / "classifier"
    for path, architecture in ((encoder, "BertModel"), (classifier, "BertForSequenceClassification")):
        path.mkdir()
        (path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    adapted = welcome(Options(models=(Served(tmp_path / "chatty"),), adapters={"sql": tmp_path}))
    assert "Models:         chatty, sql\n" in adapted
    embeds = welcome(Options(models=(Served(encoder),)))
    assert "http://127.0.0.1:8000/v1/embeddings" in embeds
    for text in (chatty, embeds):
        compile(text[text.index("from openai") :], "snippet", "exec")
    classifies = welcome(Options(models=(Served(classifier),)))
    assert "http://127.0.0.1:8000/v1/classify" in classifies
    assert "openai" not in classifies
    (tmp_path / "chatty" / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"]}))
    asked = [first_request(tmp_path / name)[0] for name in ("plain", "chatty", "encoder", "classifier")]
    assert asked == ["completions", "completions", "embeddings", "classify"]
    (encoder / "config.json").write_text(json.dumps({"architectures": ["MistralModel"]}))
    assert first_request(encoder)[0] == "embeddings"


def test_the_welcome_can_be_pasted_from_a_path_with_a_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quire = tmp_path / "a b" / "quire"
    quire.parent.mkdir()
    quire.touch()
    monkeypatch.setattr(sys, "executable", str(quire.with_name("python")))
    assert f"In a terminal:  '{quire}' chat\n" in welcome(Options(models=(Served(tmp_path),)))


def test_the_welcome_says_where_a_key_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "OPENAI_API_KEY" not in welcome(Options(models=(Served(tmp_path),)))
    (tmp_path / "keys").write_text(f"north: {SECRET}\nsouth: sk-2{SECRET}\n")
    monkeypatch.setenv("QUIRE_API_KEYS_FILE", str(tmp_path / "keys"))
    keyed = welcome(Options(models=(Served(tmp_path),)))
    assert '-H "Authorization: Bearer $OPENAI_API_KEY" \\\n  -d' in keyed
    assert "sk-" not in keyed
    monkeypatch.delenv("QUIRE_API_KEYS_FILE")
    (tmp_path / "quire" / "8123").mkdir(parents=True)
    keep(8123, {})
    assert "Put an API key into OPENAI_API_KEY" in welcome(Options(models=(Served(tmp_path),), port=8123))
    monkeypatch.setenv("QUIRE_API_KEYS_FILE", str(tmp_path / "keys"))
    compile(keyed[keyed.index("from openai") :], "snippet", "exec")
    assert own_key(Options()) == SECRET
    (tmp_path / "keys").write_text("")
    with pytest.raises(UsageError, match=r"QUIRE_API_KEYS_FILE=.*holds no key"):
        own_key(Options())


def test_processes_import_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (tmp_path / "gateway.py").write_text("raise SystemExit('a stranger')")
    urls = dict.fromkeys(CHAIN, "redis://127.0.0.1:1/0")
    for spec in service_specs(Options(), urls):
        found = subprocess.run(
            [sys.executable, "-c", "import gateway; print(gateway.__file__)"],
            env={**os.environ, **spec.environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert found.stdout.strip() == gateway.__file__, found.stderr


def test_processes_start_whatever_propagators_the_environment_has() -> None:
    """Those of packages that are not installed would end who imports OpenTelemetry."""
    for spec in service_specs(Options(), dict.fromkeys(CHAIN, "redis://127.0.0.1:1/0")):
        environment = {**os.environ, "OTEL_PROPAGATORS": "b3,jaeger", **spec.environment}
        subprocess.run([sys.executable, "-c", "import opentelemetry.propagate"], env=environment, check=True)


def test_drafts_of_the_shipped_model_come_from_the_shipped_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(**options: Any) -> dict[str, str]:
        environment = service_specs(Options(**options), dict.fromkeys(CHAIN, "redis://127.0.0.1:1/0"))[
            0
        ].environment
        return {name: environment[name] for name in environment if name in DRAFTING}

    assert given() == {}
    assert given(speculation="ngram") == {"QUIRE_SPECULATION": "ngram"}
    assert given(speculation="draft", models=(Served(tmp_path),)) == {"QUIRE_SPECULATION": "draft"}
    shipped = {"QUIRE_SPECULATION": "draft", "QUIRE_DRAFT_MODEL": str(SHIPPED_DRAFT)}
    assert given(speculation="draft") == shipped
    layer = {"QUIRE_SPECULATION": "mtp", "QUIRE_DRAFT_MODEL": str(SHIPPED_PREDICTOR)}
    assert given(speculation="mtp") == layer
    monkeypatch.setenv("QUIRE_DRAFT_MODEL", "mine")
    assert given(speculation="draft") == shipped | {"QUIRE_DRAFT_MODEL": "mine"}


def test_a_deployment_is_not_opened_by_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("QUIRE_API_KEYS_FILE", "QUIRE_OPEN_TO_ALL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("QUIRE_HOST", "0.0.0.0")
    assert main(["up"]) == UsageError.exit_status
    assert "QUIRE_OPEN_TO_ALL" in capsys.readouterr().err
    monkeypatch.setenv("QUIRE_OPEN_TO_ALL", "true")
    check_open(Options())
