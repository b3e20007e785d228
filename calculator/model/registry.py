"""Which function reads which model_type."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from calculator.model.config import Config
from calculator.model.families import (
    bloom,
    blt,
    chat,
    composite,
    deberta,
    encoders,
    ernie_vl,
    gemma3n,
    gemma4,
    gemma_vision,
    gpt,
    griffin,
    hyper,
    janus,
    jetmoe,
    linear,
    llama,
    llama_next,
    longcat,
    minimax,
    moe,
    molmo,
    nemotron,
    omni,
    remote_vision,
    rwkv,
    seq2seq,
    single,
    ssm,
    twofold,
)
from calculator.model.shape import ModelShape

Reader = Callable[[Config], ModelShape]


def _with_readers(read: Callable[[Config, dict[str, Reader]], ModelShape], cfg: Config) -> ModelShape:
    """A composite finds its language model's reader in the same table."""
    return read(cfg, READERS)


READERS: dict[str, Reader] = {
    **{name: partial(llama.read_dialect, d=dialect) for name, dialect in llama.DIALECTS.items()},
    **{name: partial(moe.read_mixture, d=mixture) for name, mixture in moe.MIXTURES.items()},
    "minimax_m2": minimax.minimax_m2,
    "gpt2": gpt.gpt2,
    "gpt_bigcode": gpt.gpt_bigcode,
    "openai-gpt": gpt.openai_gpt,
    "gptj": gpt.gptj,
    "codegen": gpt.codegen,
    "gpt_neox": gpt.gpt_neox,
    "bloom": bloom.bloom,
    "falcon": bloom.falcon,
    "mpt": bloom.mpt,
    "opt": bloom.opt,
    "xglm": bloom.xglm,
    "qwen": chat.qwen,
    "chatglm": chat.chatglm,
    "phi3small": chat.phi3small,
    "mamba": ssm.mamba,
    "falcon_mamba": ssm.mamba,
    "mamba_ssm": ssm.mamba_ssm,
    "jamba": ssm.jamba,
    "bamba": ssm.bamba,
    "granitemoehybrid": ssm.granite_hybrid,
    "nemotron_h": nemotron.nemotron_h,
    "falcon_h1": twofold.falcon_h1,
    "zamba": twofold.zamba,
    "zamba2": twofold.zamba2,
    "qwen3_next": linear.qwen3_next,
    "qwen3_5_text": linear.qwen3_5,
    "qwen3_5_moe_text": linear.qwen3_5,
    "minimax": minimax.minimax,
    "minimax_m1": minimax.minimax,
    "minimax_text_01": minimax.minimax,
    "kimi_linear": linear.kimi_linear,
    "lfm2": linear.lfm2,
    "lfm2_moe": linear.lfm2_moe,
    "rwkv": rwkv.rwkv4,
    "rwkv5": rwkv.rwkv5,
    "rwkv6": rwkv.rwkv6,
    "longcat_flash": longcat.longcat_flash,
    "jetmoe": jetmoe.jetmoe,
    "recurrent_gemma": griffin.recurrent_gemma,
    "dbrx": single.dbrx,
    "minicpm": single.minicpm,
    "minicpm3": single.minicpm3,
    "youtu": single.youtu,
    "olmo_hybrid": linear.olmo_hybrid,
    "mamba2": ssm.mamba_2,
    "mimo": single.mimo,
    "mimo_v2_flash": single.mimo_v2,
    "nemotron-nas": single.nemotron_nas,
    "deepseek_v4": hyper.deepseek_v4,
    "deepseek_ref": hyper.deepseek_v4,
    "ernie4_5_vl_moe_text": ernie_vl.ernie4_5_vl_text,
    "molmo2_text": molmo.molmo2_text,
    "gemma3n_text": gemma3n.gemma3n_text,
    "gemma4_text": gemma4.gemma4_text,
    "llama4_text": llama_next.llama4,
    "mllama_text_model": llama_next.mllama,
    "minimax_m3": minimax.minimax_m3,
    "minimax_m3_vl_text": minimax.minimax_m3,
    "step3p5": single.step3p5,
    "persimmon": single.persimmon,
    "glm5_next_text": hyper.glm5_next,
    "qwen4_exp_text": hyper.qwen4_exp,
    "blt": blt.blt,
    "bert": encoders.bert,
    "roberta": encoders.roberta,
    "xlm-roberta": encoders.roberta,
    "distilbert": encoders.distilbert,
    "albert": encoders.albert,
    "deberta": deberta.deberta,
    "deberta-v2": deberta.deberta_v2,
    "gpt_neo": bloom.gpt_neo,
    "umt5": seq2seq.umt5,
    "hunyuan_v1_moe": moe.hunyuan_moe,
    "modernbert": encoders.modernbert,
    "t5": seq2seq.t5,
    "mt5": seq2seq.t5,
    "longt5": seq2seq.long_t5,
    "switch_transformers": seq2seq.switch,
    "whisper": seq2seq.whisper,
}

COMPOSITES = (
    composite.COMPOSITES
    | ernie_vl.ERNIE
    | gemma_vision.GEMMA
    | janus.JANUS
    | molmo.MOLMO
    | omni.OMNI
    | remote_vision.REMOTE
)
for _name, _read in COMPOSITES.items():
    READERS[_name] = partial(_with_readers, _read)
