"""What the models of all HTTP bodies share."""

import json
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError


class Strict(BaseModel):
    """Types are not converted; unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


def fault(path: str, message: str) -> PydanticCustomError:
    """A fault at `path` within the field that is being read."""
    return PydanticCustomError("refused", "{message}", {"message": message, "path": path})


class Refused(BeforeValidator):
    """A field that may be given only empty: what it asks for would change the answer."""

    def __init__(self) -> None:
        super().__init__(_absent)


class Only(BeforeValidator):
    """A field that may ask for nothing but what is done anyway."""

    # The values, as JSON.
    shown: str

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "shown", " or ".join(json.dumps(value) for value in values))

        def check(value: Any) -> None:
            if value is not None and value not in values:
                raise fault("", f"can only be {self.shown}; leave it out")

        super().__init__(check)


def _absent(value: Any) -> None:
    if value:
        raise fault("", "is not supported; leave it out")


NotSupported = Annotated[None, Refused()]
