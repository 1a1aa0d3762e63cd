"""The settings of every process that reads a model's directory, and the models that ship with Quire."""

from pathlib import Path

from pydantic import Field

from ops.model_directory.hub import model_name
from ops.runtime.settings import ProcessSettings

SHIPPED_MODEL = Path(__file__).parents[1] / "tiny_model" / "model"
SHIPPED_DRAFT = Path(__file__).parents[1] / "tiny_model" / "draft"
SHIPPED_PREDICTOR = Path(__file__).parents[1] / "tiny_model" / "mtp"


class ModelSettings(ProcessSettings):
    """What every process of one model must know."""

    model: Path = SHIPPED_MODEL
    """Directory of the model, as Hugging Face lays it out, or its id there; see `hub.py`."""

    model_name: str = ""
    """Name under which the model is served. Empty: the name of its directory, or the last part of its id."""

    image_tokens: int = Field(1024, ge=0, le=16384)
    """Tokens of one image, at most, that see something, if the model sees and Quire knows how
    (docs/models.md): larger images are reduced. The time that a vision tower takes grows faster than they do.
    0: images are not taken, and the tower takes no memory."""

    @property
    def served_name(self) -> str:
        """The pool that this process belongs to."""
        return self.model_name or model_name(self.model)
