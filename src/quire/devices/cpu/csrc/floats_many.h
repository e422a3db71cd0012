// Products of many tokens with float weights: AVX-512, whose variants with VNNI take four panels at once. Included by
// products.h.
//
// Some columns of up to four panels are converted once for up to MAX_TOKENS tokens, and stay in L1. A few tokens at a
// time are multiplied with all of them, column by column; their sums stay in registers.

// 32 KB of weights, two thirds of an L1 of 48 KB. With 128 columns, loading and storing the sums takes 5 % of the time.
constexpr int COLUMNS_IN_L1 = 256;

// Columns of P pairs of panels.
template <Format F, int P>
struct ColumnsInL1 {
    F8x2 numbers[COLUMNS_IN_L1][P];

    void convert(const Matrix &m, int panel, int first, int count) {
        using Number = std::conditional_t<F == Format::F32, float, uint16_t>;
        for (int p = 0; p < P; ++p) {
            const Number *from = reinterpret_cast<const Number *>(m.panel(panel + 2 * p)) + LANES * first;
            const size_t apart = apart_from(m, panel + 2 * p);
            for (int k = 0; k < count; ++k, from += LANES) {
                if constexpr (F == Format::F32) numbers[k][p] = load_rows<F8x2>(from, apart);
                else numbers[k][p] = load_rows<F8x2>(from, apart, F == Format::BF16);
            }
        }
    }
};

// The columns after those in L1. They are prefetched to L2 while these are multiplied, a line at a time: weights that come
// from L3 would else take a quarter of the time, and many lines at once wait for each other.
struct ColumnsAhead {
    const uint8_t *first;  // of the first panel
    size_t panel_bytes, part_bytes;  // from a panel to the next; of a panel's columns
    int every, at = 0;     // columns multiplied for each line; lines prefetched so far

    // The bytes that the next tile's columns prefetch.
    const uint8_t *next(int columns) {
        const size_t from = LINE * static_cast<size_t>(at);
        at += (columns + every - 1) / every;
        return first + from / part_bytes * panel_bytes + from % part_bytes;
    }
};

// Adds `count` columns, from `first` on, to the sums of N tokens.
template <Format F, int P, int N>
inline void add_columns_in_l1(const ColumnsInL1<F, P> &w, const float *const *tokens, int first, int count,
                              ColumnsAhead &ahead, float *out) {
    const uint8_t *fetched = ahead.next(count);
    const int between = ahead.every - 1;
    F8x2 acc[N][P];
    const float *x[N];
    QUIRE_UNROLL for (int i = 0; i < N; ++i) {
        x[i] = tokens[i] + first;
        QUIRE_UNROLL for (int p = 0; p < P; ++p) acc[i][p] = load<F8x2>(out + COLUMNS * i + 2 * LANES * p);
    }
    for (int k = 0; k < count; ++k) {
        if ((k & between) == 0) prefetch_to_l2(fetched), fetched += LINE;
        QUIRE_UNROLL for (int i = 0; i < N; ++i) {
            const F8x2 number = set1<F8x2>(x[i][k]);
            QUIRE_UNROLL for (int p = 0; p < P; ++p) acc[i][p] = fma(w.numbers[k][p], number, acc[i][p]);
        }
    }
    QUIRE_UNROLL for (int i = 0; i < N; ++i)
        QUIRE_UNROLL for (int p = 0; p < P; ++p) store(out + COLUMNS * i + 2 * LANES * p, acc[i][p]);
}

// Up to MAX_TOKENS times P pairs of panels. The last token is repeated where tiles are not whole, and `out` has room.
template <Format F, int P>
[[gnu::noinline]] void many_floats(const Matrix &m, int panel, const Operand &a, int token, int count, float *out) {
    constexpr int MOST = 8, LEAST = 4;
    ColumnsInL1<F, P> w;
    const float *x[MAX_TOKENS + SPARE_TOKENS];
    for (int i = 0; i < count + SPARE_TOKENS; ++i) {
        x[i] = a.x.row(a.order.source(token + smaller(i, count - 1)));
        for (int p = 0; p < P; ++p) store(out + COLUMNS * i + 2 * LANES * p, set1<F8x2>(0.0f));
    }
    constexpr size_t COLUMN = LANES * (F == Format::F32 ? sizeof(float) : sizeof(uint16_t));
    for (int first = 0; first < m.cols; first += COLUMNS_IN_L1) {
        const int columns = smaller(COLUMNS_IN_L1, m.cols - first), past = first + columns;
        w.convert(m, panel, first, columns);
        const uint8_t *following = past < m.cols ? m.panel(panel) + COLUMN * past : m.panel(panel + 2 * P);
        ColumnsAhead ahead{following, m.panel_bytes, COLUMN * columns, count > MAX_TOKENS / 2 ? 8 : 4};
        int i = 0;
        for (; count - i > LEAST; i += MOST)
            add_columns_in_l1<F, P, MOST>(w, x + i, first, columns, ahead, out + COLUMNS * i);
        if (i < count) add_columns_in_l1<F, P, LEAST>(w, x + i, first, columns, ahead, out + COLUMNS * i);
    }
}
