// What the products of many tokens do with the integer sums of a block. Included by products.h.
//
// A token's numbers are computed in the order of quant_tile (products.h), so that they have the same bits.

// The scales of a block of two panels, as block_scale and add_minimum have them.
template <Format F>
struct BlockScales {
    F8x2 scale, minimum;
    F8x2 scales[2], minima[2];  // of its parts, where it has two

    void read(const uint8_t *head, int block, size_t apart) {
        constexpr BlockFormat f = block_format(F);
        const uint16_t *floats = reinterpret_cast<const uint16_t *>(head + head_step(f) * (block / f.blocks));
        const int8_t *parts = reinterpret_cast<const int8_t *>(floats) + floats_step(f) + parts_step(f) * (block % f.blocks);
        const F8x2 lowest = load_rows<F8x2>(f.has_minimum ? floats + LANES : floats, apart, false);
        scale = block_scale<F>(load_rows<F8x2>(floats, apart, f.is_bf16), parts, apart);
        minimum = block_minimum<F>(scale, lowest, parts, apart);
        if constexpr (f.parts == 2)
            for (int part = 0; part < 2; ++part) {
                scales[part] = load_rows<F8x2>(parts + LANES * part, apart);
                if constexpr (f.has_minimum) minima[part] = load_rows<F8x2>(parts + LANES * (2 + part), apart);
            }
    }

    // The dot products of a part, added to those of the parts before it.
    F8x2 add_part(int part, F8x2 dots, F8x2 before) const {
        if constexpr (block_format(F).parts == 1) return dots;
        else return part == 0 ? dots * scales[0] : fma(dots, scales[1], before);
    }

    // A block's product with a token, added to the sum of the blocks before it.
    F8x2 add_block(F8x2 dots, const float *token_scale, const float *token_sum, const int16_t *halves, F8x2 sum) const {
        return add_scaled(dots * scale, token_scale, token_sum, halves, sum);
    }

    // The same, with dot products that are scaled already.
    F8x2 add_scaled(F8x2 dots, const float *token_scale, const float *token_sum, const int16_t *halves, F8x2 sum) const {
        constexpr BlockFormat f = block_format(F);
        sum = fma(dots, set1<F8x2>(*token_scale), sum);
        if constexpr (f.has_minimum && f.parts == 2) {
            const F8x2 second = minima[1] * set1<F8x2>(halves[1]);
            const F8x2 both = fma(minima[0], set1<F8x2>(halves[0]), second);  // exact
            sum = fma(both * minimum, set1<F8x2>(*token_scale), sum);
        } else if constexpr (has_constant(f)) {
            sum = fma(minimum, set1<F8x2>(*token_sum), sum);
        }
        return sum;
    }
};
