// See roof.h.

#include "roof.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "program.h"

namespace quire {

#define X(name)                  \
    namespace name {             \
    extern const Roof ROOF;      \
    }
QUIRE_VARIANTS
#undef X

namespace {

using Clock = std::chrono::steady_clock;

constexpr int LOOKS = 8;
constexpr int64_t ROUNDS = 20000;                     // some 0.05 ms
constexpr size_t BUFFER = 256u << 20, PIECE = 1u << 20;  // larger than every cache; a fraction of a millisecond

const Roof &roof_of(const char *name) {
#define X(name) &name::ROOF,
    const Roof *const all[] = {QUIRE_VARIANTS};
#undef X
    for (const Roof *roof : all)
        if (!std::strcmp(name, roof->name)) return *roof;
    throw std::invalid_argument("there are no kernels of this name");
}

double since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

// Pieces of work per second by all threads, each taking the next piece until the time is over.
double pieces_per_second(Pool &pool, double seconds, const std::function<void(int64_t)> &piece) {
    double best = 0.0;
    for (int look = 0; look < LOOKS; ++look) {
        std::atomic<int64_t> next{0};
        const auto began = Clock::now();
        pool.run([&](int) {
            do piece(next.fetch_add(1));
            while (since(began) < seconds / LOOKS);
        });
        best = std::max(best, static_cast<double>(next.load()) / since(began));
    }
    return best;
}

}  // namespace

double multiply_adds_per_second(const char *variant, Pool &pool, double seconds) {
    const Roof &roof = roof_of(variant);
    std::atomic<int64_t> kept{0};
    const double pieces = pieces_per_second(pool, seconds, [&](int64_t) { kept += roof.multiply(ROUNDS); });
    return pieces * ROUNDS * roof.multiply_adds;
}

double read_bytes_per_second(const char *variant, Pool &pool, double seconds) {
    const Roof &roof = roof_of(variant);
    Arena arena;
    uint8_t *buffer = arena.take(BUFFER);
    std::memset(buffer, 1, BUFFER);
    std::atomic<uint64_t> kept{0};
    const double pieces = pieces_per_second(pool, seconds, [&](int64_t piece) {
        kept += roof.read(buffer + static_cast<size_t>(piece) * PIECE % BUFFER, PIECE);
    });
    return pieces * PIECE;
}

}  // namespace quire
