"""JetMoE: mixtures of experts whose attention is one too: every expert has query heads and an output projection of its
own over keys and values that all share.

Facts are those of src/transformers/models/jetmoe/modeling_jetmoe.py in the public transformers repository, release
5.24.
"""

from __future__ import annotations

from calculator.model.build import MoeNames, block, linear, moe_mlp, vector
from calculator.model.config import MAX_LAYERS, Config
from calculator.model.decoder import Sizes, activation, assemble, context, tied
from calculator.model.families.llama import PRE
from calculator.model.shape import Attention, ModelShape
from calculator.model.sparse import experts

MLP = MoeNames(router="mlp.router.layer", gate_up="mlp.input_linear", down="mlp.output_linear")


def jetmoe(cfg: Config) -> ModelShape:
    """A token has the query heads of its ``num_experts_per_tok`` experts, as many in each as there are KV heads. The
    matrices of attention's experts count as experts, since a token skips most of them."""
    hidden, layers = cfg.integer("hidden_size", high=2**20), cfg.integer("num_hidden_layers", high=MAX_LAYERS)
    kv, head = cfg.integer("num_key_value_heads", high=65_536), cfg.integer("kv_channels", "head_dim", high=65_536)
    moe = experts(
        cfg,
        act=activation(cfg, "activation_function", default="silu"),
        keys=("num_local_experts",),
        width=("intermediate_size",),
    )
    size = Sizes(hidden, layers, kv * moe.top_k, kv, head, cfg.integer("vocab_size"), context(cfg))
    if cfg.integer("num_attention_heads", default=size.heads, silent=True) != size.heads:
        raise cfg.bad("num_attention_heads", "range")
    softmax = Attention(
        heads=size.heads,
        kv_heads=kv,
        head_dim=head,
        v_head_dim=head,
        query_experts=moe.experts,
        dropout=cfg.number("attention_dropout", default=0.0, high=1.0),
    )
    at, inner = "self_attention.experts.", kv * head
    shared = {"split": "expert", "copies": moe.experts, "fused": True}
    tensors = (
        *linear("self_attention.kv_proj", 2 * inner, hidden, "attention", split="column"),
        *linear(f"{at}router.layer", moe.experts, hidden, "router", kind="router"),
        *linear(f"{at}input_linear", inner, hidden, "experts", **shared),  # type: ignore[arg-type]
        *linear(f"{at}output_linear", hidden, inner, "experts", **shared),  # type: ignore[arg-type]
        vector(f"{at}bias", hidden, "attention", kind="bias"),
        *moe_mlp(moe, hidden, MLP),
        vector("mlp.bias", hidden, "mlp", kind="bias"),
    )
    one = block(softmax, moe, tensors, PRE, hidden)
    return assemble(cfg, size, (one,), (0,) * layers, tie=tied(cfg, True))
