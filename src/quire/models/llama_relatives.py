"""Names of architectures that are Llama. transformers has none of them: their checkpoints come with code of their own.

InternLM and InternLM 3 say which products have biases. Yi's first files have other names for the norms.
"""

from __future__ import annotations

from quire.models.config import ATTENTION, MLP, QKV
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, PAIRED_NAMES
from quire.models.registry import alias

LLAMA = "LlamaForCausalLM"
INTERNLM = LLAMA_CONFIG.override(ignores=["attention_bias", "mlp_bias"], biases={"bias": ATTENTION})
INTERNLM3 = INTERNLM.override(biases={"qkv_bias": QKV, "bias": ("attn.out", *MLP)})
YI_NAMES = PAIRED_NAMES.marked("attn.norm", safetensors="ln1").marked("mlp.norm", safetensors="ln2")

alias("AquilaForCausalLM", of=LLAMA, model_type="aquila")
alias("InternLMForCausalLM", of=LLAMA, model_type="internlm", keys=ConfigKeys(INTERNLM))
alias("InternLM3ForCausalLM", of=LLAMA, model_type="internlm3", keys=ConfigKeys(INTERNLM3))
alias("XverseForCausalLM", of=LLAMA, model_type="xverse", gguf="xverse")
alias("YiForCausalLM", of=LLAMA, model_type="Yi", names=YI_NAMES)
