// Threads that go through an op's phases together. The end of a parallel loop of torch costs some microseconds, as much
// as a phase of a small model; threads that are at it already wait for each other in a fraction of one.
//
//   Team team(members);                                                    // torch_binding.cpp
//   parallel_for(0, members, 1, [&](int64_t begin, int64_t end) { work({team, begin, end - begin}); });
//   ...                                                                    // work(), compiled per ISA
//   const Share mine = member.share(outputs, 16);   first phase
//   member.wait();                                  all of it is there: second phase
//
// A thread may stand for several members: where torch has fewer threads than asked, or one.
#pragma once

#include <sched.h>

#include <cstdint>

#include "kernels/common/cpu/isa.h"

namespace kernels {

struct Team {
  int64_t members;
  alignas(64) int64_t arrived = 0;
  alignas(64) int64_t phase = 0;
};

struct Share {
  int64_t begin, end;
};

struct Member {
  Team& team;
  int64_t first, count;

  // Of so many things, in whole groups.
  __attribute__((always_inline)) Share share(int64_t things, int64_t group) const {
    const int64_t groups = (things + group - 1) / group;
    const int64_t begin = groups * first / team.members * group, end = groups * (first + count) / team.members * group;
    return {begin < things ? begin : things, end < things ? end : things};
  }

  // Until every member of the team is here; what they wrote before is seen.
  __attribute__((always_inline)) void wait() const {
    constexpr int kSpins = 4096;  // some ten microseconds: a thread that is late by more may have no core
    const int64_t phase = __atomic_load_n(&team.phase, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&team.arrived, count, __ATOMIC_ACQ_REL) == team.members) {
      __atomic_store_n(&team.arrived, 0, __ATOMIC_RELAXED);
      __atomic_store_n(&team.phase, phase + 1, __ATOMIC_RELEASE);
      return;
    }
    for (int spins = 0; __atomic_load_n(&team.phase, __ATOMIC_ACQUIRE) == phase; ++spins) {
      if (spins >= kSpins) {
        sched_yield();
      } else {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
    }
  }
};

}  // namespace kernels
