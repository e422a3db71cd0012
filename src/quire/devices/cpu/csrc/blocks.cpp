// KV blocks and states as plain bytes, to move them to another engine with the same model, format and kernels.
//
// A block's bytes are those of its planes, keys and values of each cache of its group, in the order of the caches. A
// state's are its tiles, layer by layer. Both are copied as they lie in memory: they never leave for other kernels.

#include <cstring>

#include "program.h"

namespace quire {

size_t Program::block_bytes(int group) const {
    size_t bytes = 0;
    for (const CacheMemory &memory : cache_memory_)
        if (memory.group == group) bytes += memory.block_bytes;
    return bytes;
}

void Program::check_moved(int group, const int32_t *blocks, int count) const {
    require(group >= 0 && static_cast<size_t>(group) <= windows_.size(), "blocks: there is no such group");
    for (int i = 0; i < count; ++i)
        require(blocks[i] >= 0 && blocks[i] < num_blocks(group), "blocks: there is no such block");
}

void Program::read_blocks(int group, const int32_t *blocks, int count, uint8_t *to) {
    check_moved(group, blocks, count);
    std::lock_guard<std::mutex> lock(turn_);
    for (int i = 0; i < count; ++i)
        for (const CacheMemory &memory : cache_memory_)
            if (memory.group == group) {
                std::memcpy(to, memory.pages.data() + memory.block_bytes * blocks[i], memory.block_bytes);
                to += memory.block_bytes;
            }
}

void Program::write_blocks(int group, const int32_t *blocks, int count, const uint8_t *from) {
    check_moved(group, blocks, count);
    std::lock_guard<std::mutex> lock(turn_);
    for (int i = 0; i < count; ++i)
        for (const CacheMemory &memory : cache_memory_)
            if (memory.group == group) {
                std::memcpy(memory.pages.data() + memory.block_bytes * blocks[i], from, memory.block_bytes);
                from += memory.block_bytes;
            }
}

size_t Program::state_bytes() const {
    size_t bytes = 0;
    for (const States &each : states_) bytes += sizeof(float) * each.layout.size();
    return bytes;
}

void Program::read_state(int slot, uint8_t *to) {
    for (const States &each : states_) require(slot >= 0 && slot < each.num_states, "there is no such slot");
    std::lock_guard<std::mutex> lock(turn_);
    for (const States &each : states_) {
        std::memcpy(to, each.tile(slot, 0, 0), sizeof(float) * each.layout.size());
        to += sizeof(float) * each.layout.size();
    }
}

void Program::write_state(int slot, const uint8_t *from) {
    for (const States &each : states_) require(slot >= 0 && slot < each.num_states, "there is no such slot");
    std::lock_guard<std::mutex> lock(turn_);
    for (const States &each : states_) {
        std::memcpy(each.tile(slot, 0, 0), from, sizeof(float) * each.layout.size());
        from += sizeof(float) * each.layout.size();
    }
}

}  // namespace quire
