// host_abi.h: what device code compiled for the host calls, and what the scheduler provides.
// Included by host.h (in front of every candidate) and by the scheduler itself.
#pragma once

struct Cudal1Index {
  unsigned x, y, z;
};

// What threadIdx, blockIdx, blockDim and gridDim are while a fiber runs.
struct Cudal1State {
  Cudal1Index thread, block, block_dim, grid_dim;
  int lane;  // of the thread in its warp
};

enum Cudal1Collective {
  CUDAL1_SHUFFLE = 1,
  CUDAL1_BALLOT,
  CUDAL1_SYNCWARP,
  CUDAL1_MATCH,
  CUDAL1_REDUCE_ADD,
  CUDAL1_REDUCE_MIN,
  CUDAL1_REDUCE_MAX,
  CUDAL1_REDUCE_UMIN,
  CUDAL1_REDUCE_UMAX,
  CUDAL1_REDUCE_AND,
  CUDAL1_REDUCE_OR,
  CUDAL1_REDUCE_XOR
};
enum Cudal1Barrier { CUDAL1_BARRIER_PLAIN, CUDAL1_BARRIER_COUNT, CUDAL1_BARRIER_AND, CUDAL1_BARRIER_OR };

#define CUDAL1_DYNAMIC_LIMIT (227 * 1024)

extern "C" {
extern Cudal1State cudal1_state;
extern char cudal1_dynamic[CUDAL1_DYNAMIC_LIMIT];
// Each returns once every thread concerned has arrived; `line` tells two places of the source apart.
int cudal1_barrier(int kind, int predicate, int line);
unsigned long long cudal1_collective(int kind, unsigned mask, unsigned long long value, int source, int line);
unsigned cudal1_active_mask(void);
// Of check builds only: a read through a cache that sees no stores, an atomic for the threads of one block alone.
void cudal1_cached_read(const void* p, unsigned long bytes);
void cudal1_block_atomic(const void* p, unsigned long bytes);
// Returns once n blocks have come, each once; all threads of a block have passed a barrier before.
void cudal1_wait_for_blocks(int* count, int n);
void cudal1_fence(void);
void cudal1_trap(void);
long long cudal1_clock(void);
}
