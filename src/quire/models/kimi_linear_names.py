"""The tensors of Kimi-Linear."""

from __future__ import annotations

from quire.models.hybrid import attention_in_some
from quire.models.kda import KDA_NAMES
from quire.models.latent import IGNORED, LATENT_NAMES, LAYOUTS
from quire.models.llama import LLAMA_NAMES
from quire.models.moe import with_experts, with_shared
from quire.models.names import Stored

MOE, CORRECTION = "block_sparse_moe", "gate.e_score_correction_bias"
EXPERTS = with_shared(
    with_experts(
        LLAMA_NAMES, block=MOE, words=("w1", "w3", "w2"),
        corrections=(Stored(f"{MOE}.{CORRECTION}", kind=""), Stored(f"mlp.{CORRECTION}", kind="")),
    ),
    f"{MOE}.shared_experts",
)  # fmt: skip
# transformers writes all feed-forward blocks under the name of those with experts
DENSE = {f"mlp.{word}": Stored(f"{MOE}.{word}_proj") for word in ("gate", "up", "down")}
NAMES = attention_in_some(EXPERTS.but({"attn.k": None, "attn.v": None, **LATENT_NAMES})).but(
    {**KDA_NAMES},
    layouts={**EXPERTS.layouts, **LAYOUTS, **dict.fromkeys((f"{each.name}.weight" for each in DENSE.values()), DENSE)},
    ignored=IGNORED,
)
