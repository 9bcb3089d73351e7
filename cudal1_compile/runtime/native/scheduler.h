// scheduler.h: runs a grid on one OS thread; the threads of a block are fibers.
//
// A fault (deadlock, divergence at a barrier, misuse of a warp collective, or what the memory check finds)
// abandons the grid: the fibers' stacks are dropped and cudal1_launch returns 1 with the report.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "host_abi.h"

enum Cudal1Order { CUDAL1_FORWARD, CUDAL1_REVERSE, CUDAL1_RANDOM };

struct Cudal1Launch {
  void (*entry)(void**);
  void** args;
  unsigned grid[3], block[3];
  unsigned dynamic_bytes;
  int order;      // Cudal1Order, of threads and of blocks
  unsigned seed;  // of CUDAL1_RANDOM
};

struct Cudal1Fault {
  char kind[32];
  char detail[256];
  const void* pc;  // in the kernel's object, or null
  Cudal1Index block, thread;
};

extern "C" int cudal1_launch(const Cudal1Launch* launch, Cudal1Fault* fault);

namespace cudal1 {
const int MAX_THREADS = 1024;
const size_t STACK_BYTES = 128 << 10;
const int MAX_WAITING = 1 << 14;      // blocks of a launch that are put aside at once
const int MAX_WAITED_FOR = 64;        // as the header says

struct Context {
  void* sp;
  void* heavy;  // the ucontext of machines without an own switch
};

enum class State : uint8_t { FRESH, READY, AT_BARRIER, IN_COLLECTIVE, EXITED };

struct Fiber {
  Context context;
  int stack;  // slot, -1 without one
  Cudal1Index index;
  State state;
  int kind, source, line;  // of the collective or barrier in which it waits
  unsigned mask;
  unsigned long long value, result;
  const void* pc;
  unsigned barrier_epoch, warp_epoch;  // barriers and __syncwarps passed
  int waits;                           // for other blocks
};

// Called around every block by whoever watches (the memory check); null in the user's process.
struct Observer {
  void (*block_begins)();
  void (*fence)();
};
extern Observer observer;
extern volatile bool expired;  // set by a timer's handler: the next barrier, collective or check fails
extern unsigned long long barriers_passed;  // by whole blocks, since the process began
extern bool repeating;  // the block runs again to where it waited for others: what it stores is there already

extern Fiber fibers[MAX_THREADS];
extern Fiber* running;  // or null
extern char* stacks;

void prepare(int threads);  // stacks with guards; blocks of so many threads need nothing more
// Inline: the memory check asks at every access.
inline Fiber* current() { return running; }
inline int number(const Fiber* fiber) { return (int)(fiber - fibers); }  // its linear index in the block
inline bool on_stack(const Fiber* fiber, const void* address) {
  return (uintptr_t)address - (uintptr_t)(stacks + fiber->stack * STACK_BYTES) < STACK_BYTES;
}
[[noreturn]] void fail(const char* kind, const char* detail, const void* pc);
}  // namespace cudal1
