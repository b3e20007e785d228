"""Which function reads which model_type."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from calculator.model.config import Config
from calculator.model.families import llama
from calculator.model.shape import ModelShape

Reader = Callable[[Config], ModelShape]

READERS: dict[str, Reader] = {
    **{name: partial(llama.read_dialect, d=dialect) for name, dialect in llama.DIALECTS.items()},
}
