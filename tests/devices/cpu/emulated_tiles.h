// The words of tiles.h in plain C++, for tests on processors without tiles. What makes the instructions fail stops the
// program: shapes that are too large or do not fit each other, and tiles before there are shapes.

struct EmulatedTiles {
    TileShapes shapes;
    bool is_configured = false;
    uint8_t data[8][TILE_ROWS][TILE_WIDTH];
};

static thread_local EmulatedTiles the_tiles;

inline void expect_of_tiles(bool condition) {
    if (!condition) __builtin_trap();
}

inline void configure_tiles(const TileShapes &shapes) {
    expect_of_tiles(shapes.palette == 1 && shapes.start_row == 0);
    for (int t = 0; t < 16; ++t) {
        const bool is_empty = !shapes.rows[t] && !shapes.row_bytes[t];
        const bool is_whole = shapes.rows[t] && shapes.row_bytes[t] && t < 8;
        expect_of_tiles(is_empty || is_whole);
        expect_of_tiles(shapes.rows[t] <= TILE_ROWS && shapes.row_bytes[t] <= TILE_WIDTH && shapes.row_bytes[t] % 4 == 0);
    }
    the_tiles.shapes = shapes, the_tiles.is_configured = true;
    std::memset(the_tiles.data, 0, sizeof the_tiles.data);
}

inline void release_tiles() { the_tiles.is_configured = false; }

inline void expect_tile(int t) { expect_of_tiles(the_tiles.is_configured && the_tiles.shapes.rows[t]); }

template <int T>
inline void clear_tile() {
    expect_tile(T);
    std::memset(the_tiles.data[T], 0, sizeof the_tiles.data[T]);
}

template <int T>
inline void load_tile(const void *p, size_t stride) {
    clear_tile<T>();
    for (int row = 0; row < the_tiles.shapes.rows[T]; ++row)
        std::memcpy(the_tiles.data[T][row], static_cast<const uint8_t *>(p) + stride * row, the_tiles.shapes.row_bytes[T]);
}

template <int T>
inline void store_tile(void *p, size_t stride) {
    expect_tile(T);
    for (int row = 0; row < the_tiles.shapes.rows[T]; ++row)
        std::memcpy(static_cast<uint8_t *>(p) + stride * row, the_tiles.data[T][row], the_tiles.shapes.row_bytes[T]);
}

template <int SUMS, int A, int B>
inline void add_tile_dots() {
    static_assert(SUMS != A && SUMS != B && A != B, "three tiles");
    expect_tile(SUMS), expect_tile(A), expect_tile(B);
    const TileShapes &s = the_tiles.shapes;
    expect_of_tiles(s.rows[A] == s.rows[SUMS] && s.row_bytes[A] == 4 * s.rows[B] && s.row_bytes[B] == s.row_bytes[SUMS]);
    for (int m = 0; m < s.rows[SUMS]; ++m)
        for (int n = 0; n < s.row_bytes[SUMS] / 4; ++n) {
            int32_t sum;
            std::memcpy(&sum, the_tiles.data[SUMS][m] + 4 * n, sizeof sum);
            for (int k = 0; k < s.row_bytes[A]; ++k)
                sum += static_cast<int8_t>(the_tiles.data[A][m][k]) * static_cast<int8_t>(the_tiles.data[B][k / 4][4 * n + k % 4]);
            std::memcpy(the_tiles.data[SUMS][m] + 4 * n, &sum, sizeof sum);
        }
}
