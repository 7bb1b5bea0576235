// The same layer on the CPU, where the threads of a team share each part: by outputs, and attention by heads.
#pragma once

#include "kernels/common/cpu/isa.h"
#include "kernels/common/cpu/team.h"
#include "kernels/decode/decode.h"

namespace decode {

struct Room {
  void* up;             // [rows, ffn], of all
  char* mine;           // of the first member: own_bytes(), aligned to 64
  int64_t mine_stride;  // from one member's to the next one's
};

struct Table {
  int64_t (*own_bytes)(const Layer& a);
  void (*layer)(const Layer& a, const Room& room, kernels::Member member);
  void (*heads)(const Heads& a, int64_t begin, int64_t end);  // of these rows
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace decode
