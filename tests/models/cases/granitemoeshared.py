"""Toys of GraniteMoeShared. In GGUF it is a Granite-MoE."""

from tests.models.case import Case, Conversion
from tests.models.cases.granite import FACTORS
from tests.models.cases.granitemoe import EXPERTS
from tests.models.cases.granitemoe import GGUF as MOE

KIND = "GraniteMoeSharedForCausalLM"
CASES = {
    "granitemoeshared": Case(KIND, {**EXPERTS, **FACTORS, "shared_intermediate_size": 56}),
    "granitemoeshared-none": Case(KIND, {**EXPERTS, **FACTORS, "shared_intermediate_size": 0}),
}
GGUF = Conversion(
    "granitemoe",
    keys=lambda c: {**MOE.keys(c), "expert_shared_feed_forward_length": c.shared_intermediate_size},
    tensor=MOE.tensor,
)
