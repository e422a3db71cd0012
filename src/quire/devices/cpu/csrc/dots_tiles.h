// Products of many tokens with quantized weights in tiles (tiles.h). Included by products.h.
//
// A tile of sums is 16 tokens times the 16 rows of two panels; one instruction adds the products of a block to it. The
// values of tokens are a tile as they are in memory, and so are the weights once they are unpacked: a panel's vector has
// four columns of a row next to each other. A block has scales of its own, so its sums leave the tile at once and are
// scaled by vectors as in dots_many.h: integers are exact in any order, so that the bits are the same.
//
// By counting, a block of 16 tokens and 16 rows takes 16 cycles of the multiplier and 48 or 64 vector instructions, two
// in a cycle, that scale; with dot products of vectors 176 or 192.

constexpr int UNPACKED = 16;        // blocks that are unpacked together: they stay in L1

// Sums of 16 tokens stay in registers.
#if defined(__clang__)
#define QUIRE_UNROLL_TILE _Pragma("unroll")
#elif defined(__GNUC__)
#define QUIRE_UNROLL_TILE _Pragma("GCC unroll 16")
#else
#define QUIRE_UNROLL_TILE
#endif

// Two tiles of sums are used in turn, or one for each part. Tiles of fewer than 16 tokens come behind those of 16.
constexpr int SUM_TILES = 2, VALUES = 2, LEVELS = 3, TILES_OF_REST = 4;

template <Format F>
struct UnpackedBlocks {
    alignas(64) uint8_t levels[UNPACKED][VECTORS * 2 * VECTOR];
    BlockScales<F> scales[UNPACKED];

    void unpack(const Matrix &m, int panel, int first, int count) {
        constexpr BlockFormat f = block_format(F);
        using B = BytesFor<F8x2>;
        const uint8_t *head = m.panel(panel), *quants = head + heads_size(f, m.num_blocks());
        const size_t apart = apart_from(m, panel);
        for (int b = 0; b < count; ++b) {
            QUIRE_UNROLL
            for (int v = 0; v < VECTORS; ++v) {
                const B all = levels_at<B, F>(quants + quants_step(f) * (first + b), apart, v);
                // Of two parts, the zero is subtracted here; of one, with the minimum.
                const bool has_surplus = f.parts == 2 && f.zero != 0;
                put_bytes(levels[b] + 2 * VECTOR * v, has_surplus ? subtract_bytes(all, each_byte<B>(f.zero)) : all);
            }
            scales[b].read(head, first + b, apart);
        }
    }
};

// The values, scales and sums of up to 16 tokens, from a block on.
struct TokenTile {
    const int8_t *values;
    size_t stride;
    const QuantRows *xq;
    size_t at[TILE_ROWS];  // first block of each token
    int count;
};

// The integer sums of a block: [part][token][row].
template <Format F, int BASE, int TURN>
inline void tile_sums(const UnpackedBlocks<F> &w, const TokenTile &x, int b, int32_t (*sums)[TILE_ROWS * 2 * LANES]) {
    constexpr BlockFormat f = block_format(F);
    constexpr int SUMS = BASE + (f.parts == 1 ? TURN : 0);
    constexpr size_t ROW = 2 * LANES * sizeof(int32_t);
    clear_tile<SUMS>();
    load_tile<BASE + VALUES>(x.values + BLOCK * b, x.stride);
    load_tile<BASE + LEVELS>(w.levels[b], ROW);
    add_tile_dots<SUMS, BASE + VALUES, BASE + LEVELS>();
    store_tile<SUMS>(sums[0], ROW);
    if constexpr (f.parts == 2) {
        clear_tile<SUMS + 1>();
        load_tile<BASE + VALUES>(x.values + BLOCK * b + BLOCK / 2, x.stride);
        load_tile<BASE + LEVELS>(w.levels[b] + VECTORS * VECTOR, ROW);
        add_tile_dots<SUMS + 1, BASE + VALUES, BASE + LEVELS>();
        store_tile<SUMS + 1>(sums[1], ROW);
    }
}

// A block's integer sums with one token, scaled and added to the sum of the blocks before it.
template <Format F>
inline F8x2 add_scaled(const BlockScales<F> &scales, const int32_t (*sums)[TILE_ROWS * 2 * LANES], const TokenTile &x,
                       int token, int block, F8x2 sum) {
    const size_t from = x.at[token] + block;
    F8x2 dots = set1<F8x2>(0.0f);
    for (int part = 0; part < block_format(F).parts; ++part)
        dots = scales.add_part(part, floats_of(lanes_at<BytesFor<F8x2>>(sums[part] + 2 * LANES * token)), dots);
    return scales.add_block(dots, x.xq->scales + from, x.xq->sums + from, x.xq->halves + 2 * from, sum);
}

// Adds `count` blocks, from `first` on, to the sums of a tile's tokens; those of 16 tokens stay in registers. The next
// block's tiles are multiplied before a block is scaled, so that both happen at the same time.
template <Format F, int BASE>
inline void add_blocks(const UnpackedBlocks<F> &w, const TokenTile &x, int first, int count, float *out) {
    alignas(64) int32_t sums[2][block_format(F).parts][TILE_ROWS * 2 * LANES];
    constexpr bool IS_FULL = BASE == 0;
    F8x2 acc[TILE_ROWS];
    if constexpr (IS_FULL) {
        QUIRE_UNROLL_TILE
        for (int i = 0; i < TILE_ROWS; ++i) acc[i] = load<F8x2>(out + COLUMNS * i);
    }
    tile_sums<F, BASE, 0>(w, x, 0, sums[0]);
    for (int b = 0; b < count; ++b) {
        if (b + 1 < count && b % 2 == 0) tile_sums<F, BASE, 1>(w, x, b + 1, sums[1]);
        if (b + 1 < count && b % 2 == 1) tile_sums<F, BASE, 0>(w, x, b + 1, sums[0]);
        const BlockScales<F> scales = w.scales[b];
        if constexpr (IS_FULL) {
            QUIRE_UNROLL_TILE
            for (int i = 0; i < TILE_ROWS; ++i) acc[i] = add_scaled<F>(scales, sums[b % 2], x, i, first + b, acc[i]);
        } else {
            for (int i = 0; i < x.count; ++i) {
                float *to = out + COLUMNS * i;
                store(to, add_scaled<F>(scales, sums[b % 2], x, i, first + b, load<F8x2>(to)));
            }
        }
    }
    if constexpr (IS_FULL) {
        QUIRE_UNROLL_TILE
        for (int i = 0; i < TILE_ROWS; ++i) store(out + COLUMNS * i, acc[i]);
    }
}

// Up to MAX_UNPACKED times two panels.
template <Format F>
[[gnu::noinline]] void pair_in_tiles(const Matrix &m, int panel, const Operand &a, int token, int count, float *out) {
    UnpackedBlocks<F> w;
    alignas(64) int8_t gathered[TILE_ROWS][UNPACKED * BLOCK];
    for (int i = 0; i < count; ++i) store(out + COLUMNS * i, set1<F8x2>(0.0f));
    for (int first = 0; first < m.num_blocks(); first += UNPACKED) {
        const int blocks = m.num_blocks() - first < UNPACKED ? m.num_blocks() - first : UNPACKED;
        w.unpack(m, panel, first, blocks);
        for (int i = 0; i < count; i += TILE_ROWS) {
            TokenTile x;
            x.xq = &a.xq, x.count = count - i < TILE_ROWS ? count - i : TILE_ROWS;
            for (int j = 0; j < x.count; ++j)
                x.at[j] = static_cast<size_t>(a.order.source(token + i + j)) * a.xq.blocks;
            x.values = a.xq.values + BLOCK * (x.at[0] + first), x.stride = static_cast<size_t>(BLOCK) * a.xq.blocks;
            if (a.order.from) {  // rows are anywhere
                for (int j = 0; j < x.count; ++j)
                    std::memcpy(gathered[j], a.xq.values + BLOCK * (x.at[j] + first), static_cast<size_t>(BLOCK) * blocks);
                x.values = gathered[0], x.stride = sizeof gathered[0];
            }
            if (x.count == TILE_ROWS) add_blocks<F, 0>(w, x, first, blocks, out + COLUMNS * i);
            else add_blocks<F, TILES_OF_REST>(w, x, first, blocks, out + COLUMNS * i);
        }
    }
}

// Up to MAX_UNPACKED times the panels of a product's tile before `last`.
template <Format F>
inline void in_tiles(const Matrix &m, int panel, int last, const Operand &a, int token, int count, float *out) {
    constexpr int PART = BLOCK / block_format(F).parts;
    TileShapes shapes;
    for (int base = 0; base <= TILES_OF_REST; base += TILES_OF_REST) {
        const int num_tokens = base && count % TILE_ROWS ? count % TILE_ROWS : TILE_ROWS;
        for (int t = 0; t < SUM_TILES; ++t) shapes.set(base + t, num_tokens, TILE_WIDTH);
        shapes.set(base + VALUES, num_tokens, PART);
        shapes.set(base + LEVELS, PART / 4, TILE_WIDTH);
    }
    configure_tiles(shapes);
    for (int i = 0; i < PANELS && panel + i < last; i += 2)
        pair_in_tiles<F>(m, panel + i, a, token, count, out + LANES * i);
    release_tiles();
}
