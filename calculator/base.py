"""What every value object of the calculator shares."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable value. Unknown fields are refused, so a misspelt name is an error and not a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
