"""What the models of all HTTP bodies share."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError


class Strict(BaseModel):
    """Types are not converted; unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


def fault(path: str, message: str) -> PydanticCustomError:
    """A fault at `path` within the field that is being read."""
    return PydanticCustomError("refused", "{message}", {"message": message, "path": path})


def _absent(value: Any) -> None:
    if value:
        raise fault("", "is not supported; leave it out")


NotSupported = Annotated[None, BeforeValidator(_absent)]
