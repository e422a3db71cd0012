// Products of few tokens are bound by reading weights: how they are read. Included by kernels.cpp, inside a variant's
// namespace.

constexpr int IN_STREAM = 4;  // the most tokens of a tile that is bound by reading weights, panel by panel
#if QUIRE_AVX512_VNNI
constexpr int IN_TWO_STREAMS = 8;  // of two panels side by side
#else
constexpr int IN_TWO_STREAMS = IN_STREAM;
#endif

// Weights are read faster than the hardware prefetcher follows, so they are prefetched this far ahead. On a Zen 4 a
// step of LFM2-350M in Q4_0 takes 5.7 ms, and 6.0 ms with 1,536, 6,144 or 12,288 bytes.
constexpr size_t AHEAD = 3072, LINE = 64;

inline void prefetch_to_l2([[maybe_unused]] const void *p) {
#if defined(__GNUC__)
    __builtin_prefetch(p, 0, 2);
#endif
}

// To L1.
inline void fetch_near([[maybe_unused]] const uint8_t *p, [[maybe_unused]] size_t bytes) {
#if defined(__GNUC__)
    for (size_t i = 0; i < bytes; i += LINE) __builtin_prefetch(p + AHEAD + i);
#endif
}

// A panel is followed by the next one. Heads and quants are read in two streams and prefetched in one, which continues
// into the next panel: no line is skipped. Where the processor needs it (kernels.h), they are brought to L2 before. That
// makes two panels side by side slower, so it is done for single ones alone.
inline void fetch_ahead(const uint8_t *p, size_t bytes) {
    fetch_near(p, bytes);
    if (FAR_AHEAD)
        for (size_t i = 0; i < bytes; i += LINE) prefetch_to_l2(p + FAR_AHEAD + i);
}

// Two panels side by side are two streams: behind its end, each continues in the panel after the other one's.
struct TwoStreams {
    const uint8_t *first;
    size_t size, apart;  // of a panel; between both, 0: there is one

    void fetch(size_t at) const {
#if defined(__GNUC__)
        const uint8_t *p = first + AHEAD + at + (AHEAD + at < size ? 0 : apart);
        __builtin_prefetch(p);
        __builtin_prefetch(p + apart);
#endif
    }
};

// The panels after those of a tile of many tokens. They are prefetched while the tile is multiplied, some lines at a time:
// unpacking them would else wait for memory while nothing is multiplied. On a Zen 5 matrices of width 4,096 times 9, 16 and
// 64 tokens take 0.56, 0.57 and 0.81 of the time in Q8_0, and 0.59, 0.66 and 0.87 in Q4_0. Prefetched to L2 alone, 9 tokens
// take 0.64 and 0.67; processors that need that for single panels were not measured.
struct PanelsAhead {
    const uint8_t *next;
    int lines;  // at a time

    PanelsAhead(const Matrix &m, int panel, int num_panels, int num_times)
        : next(m.panel(panel)), lines((static_cast<int>(num_panels * m.panel_bytes / LINE) + num_times - 1) / num_times) {}

    void fetch() {
#if defined(__GNUC__)
        for (int i = 0; i < lines; ++i, next += LINE)
            if (FAR_AHEAD) __builtin_prefetch(next, 0, 2);
            else __builtin_prefetch(next);
#endif
    }
};
