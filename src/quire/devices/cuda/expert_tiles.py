"""Which tiles products of experts use: heights as in expert_sizes.py, the rest as measured or by a rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from quire.devices._triton.experts import ExpertTile
from quire.devices._triton.packing import PACKED

from .expert_sizes import HEIGHTS, is_few, is_summed, tile_height

COLUMNS = (128, 64, 32, 16)
STAGED = 48 << 10  # numbers of tokens in all stages of a product with a quantized matrix


class ExpertKey(NamedTuple):
    """Identifies products of experts that are alike."""

    rows: int  # of the weight; of gate and up each
    columns: int
    format: str
    is_gated: bool
    height: int  # tokens of a tile

    def supports(self, tile: ExpertTile) -> bool:
        """Return whether the kernels support this tile for the product."""
        if self.format in PACKED:
            return tile.columns == PACKED[self.format].block
        is_plain = self.format in ("bf16", "f16", "f32")
        return (self.columns % tile.columns == 0 or is_plain) and (self.format != "fp8_blocks" or tile.columns <= 128)


MEASURED: dict[ExpertKey, ExpertTile] = {  # on an H200, at 1 and at 8 tokens
    ExpertKey(768, 2048, "bf16", True, 16): ExpertTile(32, 128, 2, 4),  # 15.5 and 75.6 µs; by the rule 17.0 and 80.8
    ExpertKey(2048, 768, "bf16", False, 16): ExpertTile(64, 128, 2, 3),  # 43.9 µs at 8 tokens; by the rule 46.2
}


class ExpertTiles:
    """Chooses tiles. In fixed (deterministic) mode, products of any number of tokens use one tile."""

    def __init__(self, is_fixed: bool = False, known: Mapping[ExpertKey, ExpertTile] = MEASURED) -> None:
        self.is_fixed = is_fixed
        self._known = {} if is_fixed else known

    def is_few(self, num_tokens: int, num_experts: int) -> bool:
        """Return whether the kernels of routing for few tokens are used."""
        return is_few(num_tokens, num_experts, self.is_fixed)

    def is_summed(self, num_tokens: int) -> bool:
        """Return whether the kernel of a product adds up the answers."""
        return is_summed(num_tokens, self.is_fixed)

    def height(self, num_tokens: int, top: int, num_experts: int) -> int:
        """Return the tokens of a tile."""
        return tile_height(num_tokens, top, num_experts, self.is_fixed)

    def find(self, key: ExpertKey) -> ExpertTile:
        """Return the tile of a product."""
        return self._known.get(key) or self._by_rule(key)

    def _by_rule(self, key: ExpertKey) -> ExpertTile:
        wide = key.format == "f32"
        if key.format in PACKED:
            block = PACKED[key.format].block
            tokens = block * max(key.height, 32)  # numbers of a stage: they take most of the shared memory
            if key.height == HEIGHTS[0] and not self.is_fixed:
                return ExpertTile(64, block, 2, 3)
            return ExpertTile(64, block, 4, 2 if self.is_fixed else max(2, min(4, STAGED // tokens)))
        columns = next((each for each in COLUMNS if key.columns % each == 0), COLUMNS[-1])
        if self.is_fixed or wide:
            return ExpertTile(64, min(columns, 32 if wide else 64), 4, 2 if wide else 3)
        if key.height <= 32:
            return ExpertTile(32 if key.is_gated else 64, columns, 4, 4)
        if key.height == 64:
            return ExpertTile(64 if key.is_gated else 128, min(columns, 64), 4 if key.is_gated else 8, 4)
        return ExpertTile(128, min(columns, 64), 8 if key.is_gated else 4, 3)
