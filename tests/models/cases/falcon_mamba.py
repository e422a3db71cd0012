"""Toys of Falcon-Mamba. GGUF has no key for the eps of its inner norms."""

from tests.models.case import Case, Conversion
from tests.models.cases.mamba import GGUF as MAMBA
from tests.models.cases.mamba import SIZES

KIND = "FalconMambaForCausalLM"
CASES = {
    "falcon_mamba": Case(KIND, SIZES),
    "falcon_mamba-eps": Case(
        KIND, {**SIZES, "mixer_rms_eps": 0.01, "tie_word_embeddings": True}, max_tokens=300, in_gguf=False
    ),
}
GGUF = Conversion("mamba", keys=lambda c: {**MAMBA.keys(c), "ssm.dt_b_c_rms": True}, tensor=MAMBA.tensor)
