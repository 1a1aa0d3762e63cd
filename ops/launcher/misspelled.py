"""Names in the environment that begin as settings do, and are none."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from gateway.settings import GatewaySettings
from gpu_worker.settings import WorkerSettings
from ops.runtime.settings import ProcessSettings
from scheduler_svc.settings import SchedulerSettings
from tokenizer_svc.settings import TokenizerSettings

_BEGIN = "QUIRE_"
SERVICES = (GatewaySettings, TokenizerSettings, SchedulerSettings, WorkerSettings)
SETTINGS = frozenset(
    _BEGIN + field.upper() for each in (ProcessSettings, *SERVICES) for field in each.model_fields
)
"""The names of all settings of all processes."""


def misspelled(environment: Iterable[str]) -> Iterator[str]:
    """A line for each name that no process reads, with the name that was meant if one is like it."""
    for name in sorted(environment):
        if not name.upper().startswith(_BEGIN) or name.upper() in SETTINGS:
            continue
        like = get_close_matches(name.upper(), SETTINGS, n=1, cutoff=0.85)
        yield f"{name} is no setting{f': {like[0]} is' if like else ''}"
