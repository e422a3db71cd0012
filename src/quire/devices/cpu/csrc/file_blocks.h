// Blocks of files, unpacked: one struct for every block format. quire.quant defines the formats.

#pragma once

#include "formats.h"

namespace quire {

// One block, or one superblock.
struct FileBlock {
    uint16_t scale, minimum;           // float16 (MXFP4: bfloat16)
    int8_t scales[16], minima[16];     // of the parts, in a superblock
    uint8_t quants[BLOCK * SUPER];     // one in each byte
};

using ReadBlock = void (*)(const uint8_t *from, FileBlock &to);

ReadBlock reader_of(Format f);
size_t file_block_bytes(Format f);

}  // namespace quire
