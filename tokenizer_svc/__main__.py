"""`python -m tokenizer_svc`: one tokenizer process."""

from ops.runtime.process import run
from tokenizer_svc.service import serve
from tokenizer_svc.settings import TokenizerSettings

if __name__ == "__main__":
    run(TokenizerSettings.from_environment(), "tokenizer", serve)
