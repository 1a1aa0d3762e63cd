"""The clients that are tried, and what each one's environment has."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Client:
    """One client: a package, and a script in `scripts/` that uses it as its users do."""

    name: str
    """What it is called at the command line. Its script is `with_NAME`, with underscores."""
    requirements: Sequence[str]
    """What is installed, for pip or npm. Their own requirements are pinned in `locks/NAME.txt`."""
    node: bool = False
    """It is a package of npm's, and its script runs in node."""
    scripted: bool = False
    """It is an agent that asks for more than a small model can do: `scripted.py` answers."""
    repeated: str = ""
    """The package whose requests the script makes by itself, with nothing installed."""

    @property
    def script(self) -> str:
        return f"with_{self.name.replace('-', '_')}{'.mjs' if self.node else '.py'}"

    @property
    def version(self) -> str:
        """Of the client itself, as in "openai 3.54.0"."""
        first = self.repeated or self.requirements[0]
        name, _, version = first.replace("==", "@").rpartition("@")
        return f"{name.partition('[')[0]} {version}"


CLIENTS = (
    Client("openai", ("openai==3.54.0",)),
    Client("openai-node", ("openai@7.57.0", "zod@4.6.7"), node=True),
    Client("ai-sdk", ("@ai-sdk/openai-compatible@2.0.92", "ai@6.0.326", "zod@4.6.7"), node=True),
    Client("anthropic", ("anthropic==2.14.0",)),
    Client("ollama", ("ollama==0.6.3",)),
    Client("litellm", ("litellm==1.106.2", "mcp")),
    Client("langchain", ("langchain-openai==1.7.3",)),
    Client(
        "llama-index",
        ("llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0"),
    ),
    Client("instructor", ("instructor==1.17.0",)),
    Client("pydantic-ai", ("pydantic-ai-slim[openai]==2.68.0",)),
    Client("openai-agents", ("openai-agents==0.24.0",)),
    Client("open-responses", ("openresponses-types==2.4.0", "httpx")),
    Client("smolagents", ("smolagents[openai]==1.26.0",)),
    Client("dspy", ("dspy==3.4.1", "numpy", "mcp")),
    Client("guidance", ("guidance==0.3.1", "openai")),
    Client("inspect-ai", ("inspect-ai==0.3.285", "openai")),
    Client("guidellm", ("guidellm==0.8.1",)),
    Client("open-webui", (), repeated="open-webui==0.12.4"),
    Client("haystack", ("haystack-ai==3.4.0",)),
    Client("codex", ("@openai/codex@0.169.0",), node=True, scripted=True),
    Client("claude-code", ("@anthropic-ai/claude-code@2.1.330",), node=True, scripted=True),
    Client("copilot", ("@github/copilot@1.0.102",), node=True, scripted=True),
    Client("opencode", ("opencode-ai@1.18.33",), node=True, scripted=True),
    Client("pi", ("@mariozechner/pi-coding-agent@0.73.1",), node=True, scripted=True),
    Client("lm-eval", ("lm-eval[api]==0.4.13", "transformers")),
)
