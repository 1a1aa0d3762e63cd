"""Models by id, from a hub on loopback into a cache of the test's own."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import constants

from ops.cli.main import main
from ops.launcher.redis_server import free_port
from ops.launcher.served import Served
from ops.model_directory.hub import ADAPTER, HubError, fetched, fetched_adapter, is_id, model_name
from ops.model_directory.settings import SHIPPED_DRAFT
from tests.support.hub import COMMIT, Hub, serving
from tests.support.tekken import tekken

TOKENIZERS = ("tekken.json", "tiktoken.model", "vocab.json", "merges.txt", "tokenizer.model")
EXTRAS = {
    **dict.fromkeys(TOKENIZERS, b""),
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/rag.jinja": b"{{ messages }}",
    "2_Dense/config.json": b"{}",
    "2_Dense/model.safetensors": bytes(32),
    "2_Dense/pytorch_model.bin": b"PK",
    "onnx/model.safetensors": bytes(64),
    "modeling_fox.py": b"raise SystemExit",
    "pytorch_model.bin": b"PK",
    "consolidated.safetensors": bytes(64),
    "README.md": b"# Fox",
}


def ask(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT does for a process that starts with it."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    root = tmp_path / "hub"
    shutil.copytree(SHIPPED_DRAFT, root / "forest" / "fox")
    for name, content in EXTRAS.items():
        path = root / "forest" / "fox" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    for model, files in {
        "pickled": ("config.json", "pytorch_model.bin"),
        "consolidated": ("params.json", "consolidated.safetensors"),
    }.items():
        (root / "forest" / model).mkdir()
        for name in files:
            (root / "forest" / model / name).write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with serving(root) as hub:
        ask(hub.url, monkeypatch)
        yield hub


FOX = Path("forest/fox")


@pytest.mark.parametrize("revision", ["", "@v2", f"@{COMMIT}"])
def test_what_a_model_consists_of_is_fetched_once(hub: Hub, revision: str) -> None:
    said: list[str] = []
    directory = fetched(Path(f"forest/fox{revision}"), said.append)
    found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    wanted = {path.name for path in SHIPPED_DRAFT.iterdir()}
    wanted |= {"chat_template.jinja", "additional_chat_templates/rag.jinja", *TOKENIZERS}
    assert found == wanted | {"2_Dense/config.json", "2_Dense/model.safetensors"}
    assert (directory / "model.safetensors").read_bytes() == (
        SHIPPED_DRAFT / "model.safetensors"
    ).read_bytes()
    assert hub.url in said[0]
    assert model_name(directory) == model_name(Path(f"forest/fox{revision}")) == "fox"
    assert fetched(Path(f"forest/fox{revision}")) == directory
    assert set(hub.sent.values()) == {1}


def test_a_tokenizer_fetches_no_weights_and_the_worker_s_lie_beside_its_files(hub: Hub) -> None:
    directory = fetched(FOX, weights=False)
    assert (directory / "tokenizer.json").exists()
    assert not list(directory.glob("*.safetensors"))
    assert fetched(FOX) == directory
    assert (directory / "model.safetensors").exists()
    assert set(hub.sent.values()) == {1}


def test_files_of_an_index_may_have_any_names(hub: Hub) -> None:
    """As of Qwen's models in fp8. What it does not name is not fetched."""
    folder = hub.root / "forest" / "fox"
    (folder / "model.safetensors").rename(folder / "layers-0.safetensors")
    (folder / "mtp.safetensors").write_bytes(bytes(64))
    (folder / "model-00001-of-00001.safetensors").write_bytes(bytes(64))
    named = {"model.norm.weight": "layers-0.safetensors", "mtp.fc.weight": "mtp.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    directory = fetched(FOX)
    assert {path.name for path in directory.glob("*.safetensors")} == {*named.values()}
    assert set(hub.sent.values()) == {1}


def test_odd_names_are_no_patterns(hub: Hub) -> None:
    """As names of files may have marks of patterns, spaces and letters of any script."""
    folder = hub.root / "forest" / "fox"
    (folder / "model.safetensors").rename(folder / "ré [a]+b *.safetensors")
    (folder / "ré a+b c.safetensors").write_bytes(bytes(64))
    named = {"model.norm.weight": "ré [a]+b *.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    assert {path.name for path in fetched(FOX).glob("*.safetensors")} == {*named.values()}


def test_weights_are_of_the_commit_of_the_other_files(hub: Hub) -> None:
    hub.commits = [COMMIT, "beef" + "0" * 36]
    directory = fetched(FOX)
    assert directory.name == COMMIT
    assert {"config.json", "model.safetensors"} <= {path.name for path in directory.iterdir()}


def test_a_file_of_the_index_that_is_missing_is_named(hub: Hub) -> None:
    named = {"a": "model.safetensors", "b": "other.safetensors"}
    index = hub.root / "forest" / "fox" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": named}))
    with pytest.raises(HubError, match=r"forest/fox: http.* has no other\.safetensors of it"):
        fetched(FOX)


def test_an_index_fetches_nothing_else(hub: Hub) -> None:
    folder = hub.root / "forest" / "fox"
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "pytorch_model.bin"}}')
    with pytest.raises(HubError, match=r"index\.json: 'pytorch_model\.bin' is not a file of safetensors"):
        fetched(FOX)
    assert "forest/fox/pytorch_model.bin" not in hub.sent


def test_side_by_side_everything_is_fetched_once(hub: Hub) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(fetched, [FOX] * 4))) == 1
    assert set(hub.sent.values()) == {1}


def test_what_is_in_the_cache_needs_no_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = fetched(FOX)
    ask(f"http://127.0.0.1:{free_port()}", monkeypatch)
    assert fetched(FOX) == directory
    with pytest.raises(HubError, match=r"forest/fox@v2: .* it is not whole in .*cache, and http.* cannot"):
        fetched(Path("forest/fox@v2"))


def test_a_token_is_shown_to_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetched(FOX)
    assert hub.tokens == {"Bearer hf_secret"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("forest/owl", "forest/owl: there is no such directory, and http.* has no such model"),
        ("forest/fox@v3", "forest/fox@v3: http.* has no such revision"),
        ("forest/pickled", r"forest/pickled: http.* has no model\.safetensors of it; pickles are never"),
        ("forest/consolidated", r"no model\.safetensors of it; .* nor is consolidated\.safetensors"),
        ("forest/fox--y", "forest/fox--y: .*"),
    ],
)
def test_what_cannot_be_had_is_one_line(hub: Hub, model: str, message: str) -> None:
    with pytest.raises(HubError, match=message) as caught:
        fetched(Path(model))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2, "a second try would end in the same way"
    assert not [name for name in hub.sent if name.endswith((".bin", ".py"))]


def test_a_tokenizer_does_not_wait_for_weights_that_are_not_read(hub: Hub) -> None:
    with pytest.raises(HubError, match=r"Mistral's own form of a model \(params\.json\) is not read"):
        fetched(Path("forest/consolidated"), weights=False)


def test_a_model_that_gets_a_tokenizer_keeps_its_name(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "made"))
    (hub.root / "forest/fox/tokenizer.json").unlink()
    (hub.root / "forest/fox/tekken.json").write_text(json.dumps(tekken("v7", None)))
    directory = fetched(FOX)
    assert (directory / "tokenizer.json").exists()
    assert (directory / "model.safetensors").exists()
    assert model_name(directory) == Served(directory).name == "fox"


def test_commands_take_ids_too(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan-memory", "--model", "forest/fox"]) == 0
    assert "GQA, 2 layers" in capsys.readouterr().out
    for command in ("plan-memory", "bench compare", "bench step", "bench mechanisms"):
        assert main([*command.split(), "--model", "forest/owl"]) != 0
        (line,) = capsys.readouterr().err.splitlines()
        assert "forest/owl: there is no such directory" in line


def test_a_gated_model_says_what_is_missing(hub: Hub) -> None:
    hub.gated.add("forest/fox")
    with pytest.raises(HubError, match=r"accepted its terms: .* set HF_TOKEN") as caught:
        fetched(FOX)
    assert caught.value.exit_status == 2


def test_nobody_there(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(f"http://127.0.0.1:{free_port()}", monkeypatch)
    with pytest.raises(
        HubError, match="forest/fox: there is no such directory, it is not whole in"
    ) as caught:
        fetched(FOX)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 1, "it may be there soon"


@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_hub_that_refuses_need_not_be_asked_again(hub: Hub, status: int) -> None:
    """As one that does not know the token, or does not let it read this model."""
    hub.status = status
    with pytest.raises(HubError, match=f"^forest/fox: {hub.url} answers {status}") as caught:
        fetched(FOX)
    assert caught.value.exit_status == 2
    assert str(caught.value).endswith("Invalid credentials in Authorization header") == (status == 401)
    assert "\n" not in str(caught.value)


def test_a_hub_that_may_not_be_asked_stays_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = fetched(FOX)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetched(FOX) == directory
    with pytest.raises(
        HubError, match=r"forest/fox@v2: .* not whole in .*, and HF_HUB_OFFLINE is set"
    ) as caught:
        fetched(Path("forest/fox@v2"))
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_hub_that_cannot_answer_now_may_be_asked_again(
    hub: Hub, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    hub.status = status
    with pytest.raises(HubError) as caught:
        fetched(FOX)
    assert caught.value.exit_status == 1
    hub.status = 200
    assert fetched(FOX).is_dir()


def test_directories_stay_what_they_are(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / FOX).mkdir(parents=True)
    assert not is_id(FOX)
    assert fetched(FOX) == tmp_path / FOX
    for name in ("/models/fox", "fox", "./fox", "../fox", "a/b/c", "~/fox"):
        assert not is_id(Path(name)), name
    assert fetched(Path("~/fox")) == Path.home() / "fox"
    assert model_name(Path("/models/Fox-1B/")) == "Fox-1B"
    assert model_name(Path("forest/owl@refs/pr/1")) == "owl"
    assert not hub.sent


def test_an_adapter_is_fetched_alone(hub: Hub) -> None:
    adapter = hub.root / "forest" / "sql"
    adapter.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin", "README.md"):
        (adapter / name).write_text("{}")
    directory = fetched_adapter(Path("forest/sql"))
    assert {path.name for path in directory.iterdir()} == set(ADAPTER)
    assert fetched_adapter(Path("~/sql")) == Path.home() / "sql"
    with pytest.raises(HubError, match="forest/owl: there is no such directory"):
        fetched_adapter(Path("forest/owl"))
