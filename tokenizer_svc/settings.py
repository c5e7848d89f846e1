"""What the environment says, checked at start."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from mesh.chassis.model_source import served_model_id

DEFAULT_MODEL = Path(__file__).resolve().parent.parent / "inference_svc/models/chatmesh-tiny"


class Settings(BaseSettings):
    """Settings of the tokenizer."""

    model_config = SettingsConfigDict(frozen=True)

    # A folder in the layout of the Hugging Face hub, or a hub id.
    model: str = Field(default=str(DEFAULT_MODEL), min_length=1, validation_alias="MODEL")
    # The name callers use; empty: the last part of the folder or hub id.
    model_id: str = Field(default="", validation_alias="MODEL_ID")
    # Memory for encoded messages.
    cache_byte_count_max: int = Field(
        default=64 << 20, ge=0, validation_alias="TOKENIZER_CACHE_BYTE_COUNT_MAX"
    )

    @property
    def served_model_id(self) -> str:
        """The model id of the contract."""
        return served_model_id(self.model, self.model_id)
