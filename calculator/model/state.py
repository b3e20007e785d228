"""Mixers with a fixed state: the tensors of Mamba, gated delta nets, lightning attention, short convolutions,
and gated linear recurrent units.

Sources: Mamba (arXiv 2312.00752), Mamba-2 (arXiv 2405.21060), Gated Delta Networks (arXiv 2412.06464), Kimi Linear
(arXiv 2510.26692), MiniMax-01 (arXiv 2501.08313), Griffin (arXiv 2402.19427); layouts are those of the modelling code
in the public transformers repository, release 5.24.
"""

from __future__ import annotations

from calculator.model.build import Tensors, linear, vector
from calculator.model.config import Config
from calculator.model.shape import Split, StateMixer, Tensor


def conv(name: str, channels: int, kernel: int, *, bias: bool, groups: int | None = None) -> Tensors:
    """A causal depthwise convolution over ``channels``."""
    weight = Tensor(name=f"{name}.weight", shape=(channels, 1, kernel), component="ssm", kind="conv", split="column")
    bias_part = (vector(f"{name}.bias", channels, "ssm", kind="bias", split="column"),) if bias else ()
    return (weight, *bias_part)


def _vectors(prefix: str, width: int, *names: str, split: Split = "column") -> Tensors:
    return tuple(vector(prefix + name, width, "ssm", kind="other", split=split) for name in names)


def read_mamba1(
    cfg: Config,
    hidden: int,
    *,
    inner: int,
    state: tuple[str, ...],
    kernel: tuple[str, ...],
    rank: tuple[str, ...],
) -> tuple[StateMixer, int]:
    """The mixer and its time-step rank, which is hidden / 16 rounded up where the file says "auto"."""
    size = cfg.integer(*state, high=65_536)
    width = cfg.integer(*kernel, high=1024)
    automatic = next((k for k in rank if cfg.get(k) == "auto"), None)
    step = -(-hidden // 16) if automatic else cfg.integer(*rank, high=1_000_000)
    mixer = StateMixer(
        variant="mamba1",
        conv_channels=inner,
        conv_kernel=width,
        state_elements=inner * size,
        inner=inner,
        state_size=size,
    )
    return mixer, step


def mamba1(
    m: StateMixer,
    hidden: int,
    rank: int,
    *,
    prefix: str = "mixer.",
    bias: bool = False,
    conv_bias: bool = True,
    inner_norms: bool = False,
) -> Tensors:
    """Selective state space, first version. ``inner_norms``: Jamba's norms on dt, B and C."""
    tensors: Tensors = linear(f"{prefix}in_proj", 2 * m.inner, hidden, "ssm", bias=bias, split="column")
    tensors += conv(f"{prefix}conv1d", m.inner, m.conv_kernel, bias=conv_bias)
    tensors += linear(f"{prefix}x_proj", rank + 2 * m.state_size, m.inner, "ssm", split="row")
    tensors += linear(f"{prefix}dt_proj", m.inner, rank, "ssm", bias=True, split="column")
    tensors += (
        Tensor(name=f"{prefix}A_log", shape=(m.inner, m.state_size), component="ssm", kind="other", split="column"),
    )
    tensors += _vectors(prefix, m.inner, "D")
    if inner_norms:
        tensors += (vector(f"{prefix}dt_layernorm.weight", rank, "ssm"),)
        tensors += tuple(vector(f"{prefix}{p}_layernorm.weight", m.state_size, "ssm") for p in ("b", "c"))
    return tensors + linear(f"{prefix}out_proj", hidden, m.inner, "ssm", bias=bias, split="row")


def mamba2_mixer(heads: int, head_dim: int, state: int, groups: int, kernel: int) -> StateMixer:
    inner = heads * head_dim
    return StateMixer(
        variant="mamba2",
        conv_channels=inner + 2 * groups * state,
        conv_kernel=kernel,
        state_elements=inner * state,
        heads=heads,
        head_dim=head_dim,
        state_size=state,
        groups=groups,
        inner=inner,
    )


def mamba2(
    m: StateMixer,
    hidden: int,
    *,
    prefix: str = "mixer.",
    bias: bool = False,
    out_bias: bool | None = None,
    conv_bias: bool = True,
    gated_norm: bool = True,
) -> Tensors:
    """State space duality: one input projection for gate, x, B, C and dt, a gated norm before the output."""
    out = 2 * m.inner + 2 * m.groups * m.state_size + m.heads
    tensors: Tensors = linear(f"{prefix}in_proj", out, hidden, "ssm", bias=bias, split="column")
    tensors += conv(f"{prefix}conv1d", m.conv_channels, m.conv_kernel, bias=conv_bias)
    tensors += _vectors(prefix, m.heads, "dt_bias", "A_log", "D")
    if gated_norm:
        tensors += (vector(f"{prefix}norm.weight", m.inner, "ssm", split="column"),)
    last = bias if out_bias is None else out_bias
    return tensors + linear(f"{prefix}out_proj", hidden, m.inner, "ssm", bias=last, split="row")


def read_gated_delta(cfg: Config) -> StateMixer:
    """Gated delta net by Qwen's ``linear_*`` keys."""
    key_heads = cfg.integer("linear_num_key_heads", high=65_536)
    value_heads = cfg.integer("linear_num_value_heads", high=65_536)
    key_dim = cfg.integer("linear_key_head_dim", high=65_536)
    value_dim = cfg.integer("linear_value_head_dim", high=65_536)
    kernel = cfg.integer("linear_conv_kernel_dim", high=1024)
    cfg.divide("linear_num_key_heads", value_heads, key_heads)
    dtype = cfg.string("mamba_ssm_dtype", default="")
    return StateMixer(
        variant="gated_delta",
        conv_channels=2 * key_heads * key_dim + value_heads * value_dim,
        conv_kernel=kernel,
        state_elements=value_heads * key_dim * value_dim,
        heads=value_heads,
        head_dim=value_dim,
        key_heads=key_heads,
        key_dim=key_dim,
        value_heads=value_heads,
        value_dim=value_dim,
        inner=value_heads * value_dim,
        state_dtype=dtype or None,
    )


def gated_delta(m: StateMixer, hidden: int, *, joined: bool, prefix: str = "linear_attn.") -> Tensors:
    """``joined``: q, k, v and z come from one matrix and beta and alpha from another (Qwen3-Next); else from four."""
    keys, values = m.key_heads * m.key_dim, m.value_heads * m.value_dim
    if joined:
        tensors: Tensors = linear(f"{prefix}in_proj_qkvz", 2 * keys + 2 * values, hidden, "ssm", split="column")
        tensors += linear(f"{prefix}in_proj_ba", 2 * m.value_heads, hidden, "ssm", split="column")
    else:
        tensors = linear(f"{prefix}in_proj_qkv", 2 * keys + values, hidden, "ssm", split="column")
        tensors += linear(f"{prefix}in_proj_z", values, hidden, "ssm", split="column")
        tensors += linear(f"{prefix}in_proj_b", m.value_heads, hidden, "ssm", split="column")
        tensors += linear(f"{prefix}in_proj_a", m.value_heads, hidden, "ssm", split="column")
    tensors += conv(f"{prefix}conv1d", m.conv_channels, m.conv_kernel, bias=False)
    tensors += _vectors(prefix, m.value_heads, "dt_bias", "A_log")
    tensors += (vector(f"{prefix}norm.weight", m.value_dim, "ssm"),)
    return tensors + linear(f"{prefix}out_proj", hidden, values, "ssm", split="row")


def split_gated_delta(m: StateMixer, hidden: int, *, prefix: str = "linear_attn.") -> Tensors:
    """The same with a matrix and a convolution for each of q, k and v, and an output gate (OLMo Hybrid)."""
    keys, values = m.key_heads * m.key_dim, m.value_heads * m.value_dim
    tensors: Tensors = ()
    for part, width in (("q", keys), ("k", keys), ("v", values)):
        tensors += linear(f"{prefix}{part}_proj", width, hidden, "ssm", split="column")
        tensors += conv(f"{prefix}{part}_conv1d", width, m.conv_kernel, bias=False)
    for part in ("a", "b"):
        tensors += linear(f"{prefix}{part}_proj", m.value_heads, hidden, "ssm", split="column")
    tensors += linear(f"{prefix}g_proj", values, hidden, "ssm", split="column")
    tensors += _vectors(prefix, m.value_heads, "dt_bias", "A_log")
    tensors += (vector(f"{prefix}o_norm.weight", m.value_dim, "ssm"),)
    return tensors + linear(f"{prefix}o_proj", hidden, values, "ssm", split="row")


def delta_attention_mixer(heads: int, head_dim: int, kernel: int) -> StateMixer:
    """Kimi delta attention: q, k and v of the same width, one square state per head."""
    inner = heads * head_dim
    return StateMixer(
        variant="kda",
        conv_channels=3 * inner,
        conv_kernel=kernel,
        state_elements=inner * head_dim,
        heads=heads,
        head_dim=head_dim,
        key_heads=heads,
        key_dim=head_dim,
        value_heads=heads,
        value_dim=head_dim,
        inner=inner,
    )


def delta_attention(m: StateMixer, hidden: int, *, prefix: str = "self_attn.") -> Tensors:
    """Forget gate and output gate are low-rank through one head's width."""
    tensors: Tensors = ()
    for part in ("q", "k", "v"):
        tensors += linear(f"{prefix}{part}_proj", m.inner, hidden, "ssm", split="column")
        tensors += conv(f"{prefix}{part}_conv1d", m.inner, m.conv_kernel, bias=False)
    tensors += (
        vector(f"{prefix}A_log", m.heads, "ssm", kind="other", split="column"),
        vector(f"{prefix}dt_bias", m.inner, "ssm", kind="other", split="column"),
    )
    for part in ("f", "g"):
        tensors += linear(f"{prefix}{part}_a_proj", m.head_dim, hidden, "ssm")
        tensors += linear(f"{prefix}{part}_b_proj", m.inner, m.head_dim, "ssm", split="column")
    tensors += linear(f"{prefix}b_proj", m.heads, hidden, "ssm", split="column")
    tensors += (vector(f"{prefix}o_norm.weight", m.head_dim, "ssm"),)
    return tensors + linear(f"{prefix}o_proj", hidden, m.inner, "ssm", split="row")


def lightning(heads: int, head_dim: int, hidden: int) -> tuple[StateMixer, Tensors]:
    """MiniMax's linear attention: fused q, k, v, a norm, an output gate, one square state per head."""
    inner = heads * head_dim
    mixer = StateMixer(
        variant="lightning", state_elements=inner * head_dim, heads=heads, head_dim=head_dim, inner=inner
    )
    tensors = (
        *linear("self_attn.qkv_proj", 3 * inner, hidden, "ssm", split="column"),
        vector("self_attn.norm.weight", inner, "ssm", split="column"),
        *linear("self_attn.output_gate", inner, hidden, "ssm", split="column"),
        *linear("self_attn.out_proj", hidden, inner, "ssm", split="row"),
    )
    return mixer, tensors


def short_conv(hidden: int, kernel: int, *, bias: bool) -> tuple[StateMixer, Tensors]:
    """LFM2's gated short convolution."""
    mixer = StateMixer(variant="short_conv", conv_channels=hidden, conv_kernel=kernel, inner=hidden)
    tensors = (
        *linear("conv.in_proj", 3 * hidden, hidden, "ssm", bias=bias, split="column"),
        *conv("conv.conv", hidden, kernel, bias=bias),
        *linear("conv.out_proj", hidden, hidden, "ssm", bias=bias, split="row"),
    )
    return mixer, tensors


def rglru_mixer(heads: int, head_dim: int, kernel: int) -> StateMixer:
    """Griffin's recurrent unit: the state is one row, always in fp32."""
    inner = heads * head_dim
    return StateMixer(
        variant="rglru",
        conv_channels=inner,
        conv_kernel=kernel,
        state_elements=inner,
        heads=heads,
        head_dim=head_dim,
        inner=inner,
        state_dtype="float32",
    )


def rglru(m: StateMixer, hidden: int, *, prefix: str) -> Tensors:
    """Two branches in, a convolution on one, the recurrence with two gates of one square block per head, and back."""
    tensors: Tensors = ()
    for part in ("x", "y"):
        tensors += linear(f"{prefix}linear_{part}", m.inner, hidden, "ssm", bias=True, split="column")
    tensors += conv(f"{prefix}conv_1d", m.inner, m.conv_kernel, bias=True)
    tensors += _vectors(f"{prefix}rg_lru.", m.inner, "recurrent_param")
    for gate in ("input_gate", "recurrent_gate"):
        for name, shape in (("weight", (m.heads, m.head_dim, m.head_dim)), ("bias", (m.heads, m.head_dim))):
            tensors += (
                Tensor(
                    name=f"{prefix}rg_lru.{gate}_{name}", shape=shape, component="ssm", kind="other", split="column"
                ),
            )
    return tensors + linear(f"{prefix}linear_out", hidden, m.inner, "ssm", bias=True, split="row")
