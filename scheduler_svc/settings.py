"""Settings of a scheduler process."""

from pydantic import Field

from ops.runtime.settings import ModelSettings
from scheduler_svc.core.drafting import DRAFTERS
from scheduler_svc.core.policies import POLICIES


class SchedulerSettings(ModelSettings):
    """What a scheduler must know; what the workers can hold they say themselves."""

    policy: str = Field("fcfs", pattern=f"^({'|'.join(POLICIES)})$")
    """Who comes first when not all can run."""

    speculation: str = Field("off", pattern=f"^(off|{'|'.join(DRAFTERS)})$")
    """Where drafts of tokens come from: nowhere, the text itself, or the workers' draft models."""

    plan_depth: int | None = Field(None, ge=1, le=4)
    """Plans under way at once. 1 is lock step; 2 hides planning and the queue behind the forward pass.
    Default: as many as that takes."""

    step_tokens: int | None = Field(None, ge=1)
    """Tokens that one step may compute: more is more throughput, fewer a steadier pace of decodes.
    Default: as many as the worker says."""

    max_waiting_requests: int = Field(0, ge=0)
    """Requests that may wait for room at once; more are refused for now. 0: any number."""

    max_waiting_tokens: int = Field(0, ge=0)
    """Prompt tokens that may wait at once; more are refused for now. 0: any number."""

    max_requests: int = Field(256, ge=1)
    """Requests that are held at once; more wait at the door, where other replicas may take them."""
