"""What a person sees once the deployment is up."""

import json
import shlex
import sys
from pathlib import Path

from gpu_worker.models.families import is_headless
from ops.launcher.specs import Options
from ops.model_directory.classifier import classifier_of
from ops.model_directory.encoder import encoder_family
from ops.model_directory.modules import pools
from tokenizer_svc.model.files import read_config, template_source

_CURL = """\
curl {url}/v1/{endpoint} -H 'Content-Type: application/json' \\{key_header}
  -d {body}"""

_KEY_HEADER = """
  -H "Authorization: Bearer $OPENAI_API_KEY" \\"""

_PYTHON_CHAT = """\
from openai import OpenAI  # pip install openai
client = OpenAI(base_url="{url}/v1"{api_key})
for chunk in client.chat.completions.create(
    model={model},
    messages=[{{"role": "user", "content": "{question}"}}],
    stream=True,
):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
"""

_PYTHON_TEXT = """\
from openai import OpenAI  # pip install openai
client = OpenAI(base_url="{url}/v1"{api_key})
for chunk in client.completions.create(model={model}, prompt="{question}", max_tokens=60, stream=True):
    print(chunk.choices[0].text, end="", flush=True)
"""

_PYTHON_EMBEDDING = """\
from openai import OpenAI  # pip install openai
client = OpenAI(base_url="{url}/v1"{api_key})
print(client.embeddings.create(model={model}, input="{question}").data[0].embedding)
"""


def welcome(options: Options) -> str:
    """How to talk to the deployment; what it prints works when pasted."""
    url, names, first = options.url, [*options.model_names, *options.adapters], options.models[0]
    endpoint, python, question, rest = _example(first.path)
    keyed = options.keyed
    curl = _CURL.format(
        url=url,
        endpoint=endpoint,
        key_header=_KEY_HEADER if keyed else "",
        body=shlex.quote(json.dumps({"model": first.name, **rest})),
    )
    snippet = python.format(
        url=url,
        api_key="" if keyed else ', api_key="none"',  # it is taken from OPENAI_API_KEY
        model=json.dumps(first.name),
        question=question,
    )
    keys = f"one of the keys in {options.api_keys_file}" if options.api_keys_file else "an API key"
    key = f"Put {keys} into OPENAI_API_KEY.\n\n" if keyed else ""
    models = f"Models:         {', '.join(names)}\n" if len(names) > 1 else ""
    package = f"\n\nWith the openai package:\n\n{snippet}" if snippet else ""
    return f"""\
{key}{models}In a browser:   {url}/
In a terminal:  {quire_command()} chat{"" if options.port == 8000 else f" --url {url}"}

With curl:

{curl}{package}"""


FIRST_REQUEST: tuple[str, dict[str, object]] = ("completions", {"prompt": "Once", "max_tokens": 1})
"""What a model that generates is asked for its first answer: an endpoint, and a body without its name."""


def first_request(model: Path) -> tuple[str, dict[str, object]]:
    """As `FIRST_REQUEST`, of any model."""
    endpoint, _, _, body = _example(model)
    if endpoint in ("classify", "embeddings"):
        return endpoint, body
    return FIRST_REQUEST


def _example(model: Path) -> tuple[str, str, str, dict[str, object]]:
    """What a model can be asked: an endpoint, how the openai package asks it (empty: it does not), the
    question, and the body without the model's name."""
    config = read_config(model / "config.json")
    if classifier_of(model, config) is not None:
        question = "What a fine day."
        return "classify", "", question, {"input": question}
    names = config.get("architectures")
    headless = isinstance(names, list) and any(is_headless(str(name)) for name in names)
    if headless or encoder_family(config) is not None or pools(model):
        question = "A fox in the snow."
        return "embeddings", _PYTHON_EMBEDDING, question, {"input": question}
    if template_source(model) is not None:
        question = "Tell me a story about a fox."
        messages = [{"role": "user", "content": question}]
        return "chat/completions", _PYTHON_CHAT, question, {"messages": messages}
    question = "Once upon a time"
    return "completions", _PYTHON_TEXT, question, {"prompt": question, "max_tokens": 60}


def quire_command() -> str:
    """How the `quire` command is called from here."""
    path = Path(sys.executable).with_name("quire")
    if not path.exists():
        return "quire"
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
