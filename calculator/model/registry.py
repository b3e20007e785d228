"""Which function reads which model_type."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from calculator.model.config import Config
from calculator.model.families import chat, gpt, llama, moe
from calculator.model.shape import ModelShape

Reader = Callable[[Config], ModelShape]

READERS: dict[str, Reader] = {
    **{name: partial(llama.read_dialect, d=dialect) for name, dialect in llama.DIALECTS.items()},
    **{name: partial(moe.read_mixture, d=mixture) for name, mixture in moe.MIXTURES.items()},
    "gpt2": gpt.gpt2,
    "gpt_bigcode": gpt.gpt_bigcode,
    "openai-gpt": gpt.openai_gpt,
    "gptj": gpt.gptj,
    "codegen": gpt.codegen,
    "gpt_neox": gpt.gpt_neox,
    "bloom": gpt.bloom,
    "falcon": gpt.falcon,
    "mpt": gpt.mpt,
    "opt": gpt.opt,
    "xglm": gpt.xglm,
    "qwen": chat.qwen,
    "chatglm": chat.chatglm,
    "phi3small": chat.phi3small,
}
