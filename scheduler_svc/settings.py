"""Settings of a scheduler process."""

from pathlib import Path

from pydantic import Field

from ops.model_directory.settings import ModelSettings
from scheduler_svc.core.drafters import DRAFTERS
from scheduler_svc.core.policies import POLICIES


class SchedulerSettings(ModelSettings):
    """Settings of a scheduler; what the workers can hold, they report themselves."""

    policy: str = Field("fcfs", pattern=f"^({'|'.join(POLICIES)})$")
    """Which requests come first when not all can run."""

    speculation: str = Field("ngram", pattern=f"^(off|{'|'.join(DRAFTERS)})$")
    """Source of drafts. off: none; ngram: the text itself; draft: the workers' draft models; mtp: the
    model's layer for multi-token prediction."""

    plan_depth: int | None = Field(None, ge=1, le=4)
    """Plans in flight at once. 1: lock step; 2 or more hide planning and the queue behind the forward pass.
    Default: measured."""

    step_tokens: int | None = Field(None, ge=1)
    """Tokens that one step may compute: more give more throughput, fewer a steadier rate of decodes.
    Default: the worker's limit."""

    step_seconds: float | None = Field(None, gt=0, le=60)
    """What a step should take that computes prompts beside answers, whose next tokens wait for it: less
    gives a steadier pace, more a sooner first token. Default: 0.15, or four times what answers alone take."""

    recordings: Path | None = None
    """Directory for recordings of what was planned and computed, with the tokens of prompts and answers.
    None: nothing is recorded."""

    max_waiting_requests: int = Field(0, ge=0)
    """Requests that may wait at once; further ones are refused for now. 0: any number."""

    max_waiting_tokens: int = Field(0, ge=0)
    """Prompt tokens that may wait at once; further ones are refused for now. 0: any number."""

    max_requests: int = Field(1024, ge=1)
    """Requests that are held at once; further ones wait at the door, where other replicas may take them."""
