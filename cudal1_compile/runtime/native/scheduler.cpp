// scheduler.cpp: fibers, barriers and warp collectives of one grid at a time. See scheduler.h.
#include "scheduler.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

extern "C" {
Cudal1State cudal1_state;
__attribute__((aligned(1024))) char cudal1_dynamic[CUDAL1_DYNAMIC_LIMIT];
}

namespace cudal1 {
Observer observer;
volatile bool expired;
unsigned long long barriers_passed;
bool repeating;
Fiber fibers[MAX_THREADS];
Fiber* running;
char* stacks;

namespace {
struct Warp {
  unsigned present, waiting, exited;  // lanes
};
// A block that waits for others is put aside: its fibers are dropped, and once the others have come it runs again
// from its start, through the waits that are over. So it must store the same again, which atomics do not.
struct Waiting {
  Cudal1Index block;
  int* count;
  int n, waits;
};
struct Grid {
  const Cudal1Launch* launch;
  Cudal1Fault* fault;
  Context main;
  Warp warp[MAX_THREADS / 32];
  int threads, exited, at_barrier, barrier_value, barrier_line, barrier_kind;
  int queue[MAX_THREADS], head, queued;  // of fibers that can run
  int free_stack[MAX_THREADS], free_stacks;
  unsigned random;
  bool failed;
  int waits_over;  // of the running block
  Waiting waiting[MAX_WAITING];
  int waiting_blocks;
};
Grid g;

unsigned next_random() {
  g.random = g.random * 1664525u + 1013904223u;
  return g.random >> 8;
}

// ---------------------------------------------------------------- switching
void fiber_main();
#if defined(__x86_64__)
extern "C" void cudal1_switch(void** save, void* to);
__asm__(
    ".text\n.globl cudal1_switch\n.hidden cudal1_switch\n.type cudal1_switch,@function\n"
    "cudal1_switch:\n"
    " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
    ".size cudal1_switch,.-cudal1_switch\n");
void jump(Context& from, Context& to) { cudal1_switch(&from.sp, to.sp); }
void make_context(Context& context, char* stack, int slot) {
  // Tops are shifted against each other so that 1024 stacks do not fall into the same cache sets.
  char* top = stack + STACK_BYTES - 64 - slot * 7 % 61 * 64;
  void** sp = (void**)((uintptr_t)top & ~(uintptr_t)15);
  *--sp = nullptr;
  *--sp = (void*)fiber_main;
  for (int i = 0; i < 6; i++) *--sp = nullptr;
  context.sp = sp;
}
#else
ucontext_t heavy[MAX_THREADS], heavy_main, heavy_dropped;
void jump(Context& from, Context& to) {
  if (!from.heavy) from.heavy = &from == &g.main ? &heavy_main : &heavy_dropped;
  swapcontext((ucontext_t*)from.heavy, (ucontext_t*)to.heavy);
}
void make_context(Context& context, char* stack, int slot) {
  ucontext_t* u = &heavy[slot];
  getcontext(u);
  u->uc_stack.ss_sp = stack;
  u->uc_stack.ss_size = STACK_BYTES;
  u->uc_link = nullptr;
  makecontext(u, fiber_main, 0);
  context.heavy = u;
}
#endif

// ---------------------------------------------------------------- the queue of those that can run
void enqueue(Fiber& fiber) {
  int slot = (g.head + g.queued++) % MAX_THREADS;
  g.queue[slot] = number(&fiber);
  if (g.launch->order != CUDAL1_RANDOM) return;
  int other = (g.head + next_random() % g.queued) % MAX_THREADS;
  int kept = g.queue[other];
  g.queue[other] = g.queue[slot];
  g.queue[slot] = kept;
}
void wake(Fiber& fiber) {
  fiber.state = State::READY;
  enqueue(fiber);
}
template <class F> void in_order(int n, F visit) {
  if (g.launch->order == CUDAL1_REVERSE)
    for (int i = n - 1; i >= 0; i--) visit(i);
  else
    for (int i = 0; i < n; i++) visit(i);
}

[[noreturn]] void deadlock() {
  int barrier = 0, collective = 0;
  Fiber* stuck = nullptr;
  for (int i = 0; i < g.threads; i++) {
    Fiber& f = fibers[i];
    if (f.state == State::AT_BARRIER) barrier++;
    if (f.state == State::IN_COLLECTIVE) collective++;
    if (f.state == State::IN_COLLECTIVE || (f.state == State::AT_BARRIER && !stuck)) stuck = &f;
  }
  char text[200];
  snprintf(text, sizeof text, "%d threads wait at a barrier, %d in a warp collective, %d have exited", barrier,
           collective, g.exited);
  running = stuck;
  fail("deadlock", text, stuck ? stuck->pc : nullptr);
}
Fiber* dequeue() {  // null: the block is done
  if (g.queued == 0) {
    if (g.exited < g.threads) deadlock();
    return nullptr;
  }
  Fiber* next = &fibers[g.queue[g.head]];
  g.head = (g.head + 1) % MAX_THREADS;
  g.queued--;
  return next;
}
void become(Fiber& fiber) {
  running = &fiber;
  cudal1_state.thread = fiber.index;
  cudal1_state.lane = number(&fiber) % 32;
}
void give_stack(Fiber& fiber, int slot) {
  fiber.stack = slot;
  fiber.state = State::READY;
}
void switch_to(Context& from, Fiber* next) {  // null: back to the main context
  if (!next) {
    running = nullptr;
    jump(from, g.main);
    return;
  }
  if (next->state == State::FRESH) {
    int slot = g.free_stack[--g.free_stacks];
    give_stack(*next, slot);
    make_context(next->context, stacks + slot * STACK_BYTES, slot);
  }
  become(*next);
  jump(from, next->context);
}
void wait_here() {  // the running fiber's state says why; others run until it is awake
  Fiber* self = running;
  if (expired) fail("timeout", "no end within the time limit: an endless loop?", self->pc);
  Fiber* next = dequeue();
  if (next == self)
    become(*self);
  else
    switch_to(self->context, next);
}

// ---------------------------------------------------------------- collectives
void release_barrier() {
  if (!repeating) barriers_passed++;
  g.at_barrier = 0;
  in_order(g.threads, [](int i) {
    Fiber& f = fibers[i];
    if (f.state != State::AT_BARRIER) return;
    f.result = (unsigned long long)g.barrier_value;
    f.barrier_epoch++;
    wake(f);
  });
}
unsigned long long reduce(int kind, unsigned long long a, unsigned long long b) {
  long long x = (long long)a, y = (long long)b;
  switch (kind) {
    case CUDAL1_REDUCE_ADD: return a + b;
    case CUDAL1_REDUCE_MIN: return x < y ? a : b;
    case CUDAL1_REDUCE_MAX: return x > y ? a : b;
    case CUDAL1_REDUCE_UMIN: return a < b ? a : b;
    case CUDAL1_REDUCE_UMAX: return a > b ? a : b;
    case CUDAL1_REDUCE_AND: return a & b;
    case CUDAL1_REDUCE_OR: return a | b;
    default: return a ^ b;
  }
}
unsigned long long joint_result(const Fiber* lanes, unsigned mask, int kind) {
  unsigned long long all = 0;
  bool first = true;
  for (unsigned left = mask; left; left &= left - 1) {
    int lane = __builtin_ctz(left);
    unsigned long long value = lanes[lane].value;
    if (kind == CUDAL1_BALLOT)
      all |= (unsigned long long)(value != 0) << lane;
    else
      all = first ? value : reduce(kind, all, value);
    first = false;
  }
  return all;
}
unsigned long long lane_result(const Fiber* lanes, unsigned mask, const Fiber& self) {
  if (self.kind == CUDAL1_SHUFFLE) {
    bool defined = self.source >= 0 && self.source < 32 && (mask >> self.source & 1);
    return defined ? lanes[self.source].value : ~0ull;  // a lane that takes no part: undefined, so poison
  }
  unsigned same = 0;
  for (unsigned left = mask; left; left &= left - 1)
    if (lanes[__builtin_ctz(left)].value == self.value) same |= left & -left;
  return same;
}
void finish_collective(Warp& warp, Fiber* lanes, unsigned mask, int kind) {
  bool joint = kind == CUDAL1_BALLOT || kind >= CUDAL1_REDUCE_ADD;
  unsigned long long all = joint ? joint_result(lanes, mask, kind) : 0;
  for (unsigned left = mask; left; left &= left - 1) {
    Fiber& f = lanes[__builtin_ctz(left)];
    f.result = joint ? all : kind == CUDAL1_SYNCWARP ? 0 : lane_result(lanes, mask, f);
    if (kind == CUDAL1_SYNCWARP) f.warp_epoch++;
  }
  warp.waiting &= ~mask;
  in_order(32, [lanes, mask](int lane) {
    if (mask >> lane & 1) wake(lanes[lane]);
  });
}
void try_collective(Warp& warp, Fiber* lanes, const Fiber& self) {
  unsigned mask = self.mask & warp.present;
  if (mask & warp.exited)
    fail("warp_misuse", "a lane that the mask of a warp collective names has exited", self.pc);
  if (mask & ~warp.waiting) return;
  for (unsigned left = mask; left; left &= left - 1) {
    const Fiber& f = lanes[__builtin_ctz(left)];
    if (f.kind == self.kind && f.mask == self.mask && f.line == self.line) continue;
    fail("warp_misuse", "lanes that one mask names are in different warp collectives", self.pc);
  }
  finish_collective(warp, lanes, mask, self.kind);
}

void exit_thread() {
  Fiber& self = *running;
  int i = number(&self);
  Warp& warp = g.warp[i / 32];
  self.state = State::EXITED;
  g.exited++;
  warp.exited |= 1u << i % 32;
  Fiber* lanes = &fibers[i / 32 * 32];
  for (unsigned left = warp.waiting; left; left &= left - 1) {
    const Fiber& f = lanes[__builtin_ctz(left)];
    if (f.mask >> i % 32 & 1)
      fail("warp_misuse", "a lane that the mask of a warp collective names has exited", f.pc);
  }
  if (g.at_barrier && g.at_barrier + g.exited == g.threads) release_barrier();
}
void fiber_main() {
  for (;;) {
    g.launch->entry(g.launch->args);
    exit_thread();
    Fiber* self = running;
    Fiber* next = dequeue();
    if (next && next->state == State::FRESH) {  // it starts on this same stack: no switch
      give_stack(*next, self->stack);
      next->context = self->context;
      become(*next);
      continue;
    }
    g.free_stack[g.free_stacks++] = self->stack;
    switch_to(self->context, next);
  }
}

// ---------------------------------------------------------------- blocks and grids
void reset_stacks() {
  for (int i = 0; i < MAX_THREADS; i++) g.free_stack[i] = MAX_THREADS - 1 - i;
  g.free_stacks = MAX_THREADS;
}
void lay_out_threads() {
  const unsigned* b = g.launch->block;
  for (unsigned i = 0; i < (unsigned)g.threads; i++)
    fibers[i].index = {i % b[0], i / b[0] % b[1], i / (b[0] * b[1])};
}
void run_block(Cudal1Index block, int waits_over) {
  cudal1_state.block = block;
  g.waits_over = waits_over;
  repeating = waits_over > 0;
  g.exited = g.at_barrier = g.head = g.queued = 0;
  memset(g.warp, 0, sizeof g.warp);
  for (int i = 0; i < g.threads; i++) {
    Fiber& f = fibers[i];
    f.state = State::FRESH;
    f.barrier_epoch = f.warp_epoch = 0;
    f.waits = 0;
    g.warp[i / 32].present |= 1u << i % 32;
  }
  in_order(g.threads, [](int i) { enqueue(fibers[i]); });
  if (observer.block_begins) observer.block_begins();
  switch_to(g.main, dequeue());
}
// Those whose others have all come.
void run_awaited() {
  for (int i = 0; i < g.waiting_blocks && !g.failed;) {
    Waiting next = g.waiting[i];
    if (*next.count < next.n) {
      i++;
      continue;
    }
    g.waiting[i] = g.waiting[--g.waiting_blocks];
    run_block(next.block, next.waits);
    i = 0;
  }
}
Cudal1Index block_at(unsigned long long i, const unsigned* grid) {
  return {(unsigned)(i % grid[0]), (unsigned)(i / grid[0] % grid[1]),
          (unsigned)(i / ((unsigned long long)grid[0] * grid[1]))};
}
}  // namespace

void prepare(int threads) {
  static int guarded = 0;
  if (!stacks) {
    size_t bytes = STACK_BYTES * MAX_THREADS;
    void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return;
    stacks = (char*)found;
  }
  // and the one above: an array's index may be too large as well
  for (; guarded < threads + 1 && guarded < MAX_THREADS; guarded++)
    mprotect(stacks + guarded * STACK_BYTES, 4096, PROT_NONE);
}
static void note(const char* kind, const char* detail, const void* pc) {
  Cudal1Fault& fault = *g.fault;
  snprintf(fault.kind, sizeof fault.kind, "%s", kind);
  snprintf(fault.detail, sizeof fault.detail, "%s", detail);
  fault.pc = pc;
  fault.block = cudal1_state.block;
  fault.thread = running ? running->index : Cudal1Index{0, 0, 0};
  g.failed = true;
}
// The block's fibers and their stacks are given up.
[[noreturn]] static void drop_block() {
  running = nullptr;
  reset_stacks();
  static Context dropped;
  jump(dropped, g.main);
  __builtin_unreachable();
}
void fail(const char* kind, const char* detail, const void* pc) {
  note(kind, detail, pc);
  drop_block();
}
}  // namespace cudal1

using namespace cudal1;

extern "C" int cudal1_launch(const Cudal1Launch* launch, Cudal1Fault* fault) {
  memset(fault, 0, sizeof *fault);
  const unsigned *grid = launch->grid, *block = launch->block;
  unsigned long long threads = (unsigned long long)block[0] * block[1] * block[2];
  prepare(threads > (unsigned)MAX_THREADS ? 0 : (int)threads);
  unsigned long long blocks = (unsigned long long)grid[0] * grid[1] * grid[2];
  if (!stacks || threads < 1 || threads > (unsigned)MAX_THREADS || blocks < 1 ||
      launch->dynamic_bytes > CUDAL1_DYNAMIC_LIMIT) {
    snprintf(fault->kind, sizeof fault->kind, "bad_launch");
    snprintf(fault->detail, sizeof fault->detail, "%llu blocks of %llu threads, %u bytes of shared memory", blocks,
             threads, launch->dynamic_bytes);
    return 1;
  }
  g.launch = launch;
  g.fault = fault;
  g.threads = (int)threads;
  g.random = launch->seed;
  g.failed = false;
  g.waiting_blocks = 0;
  running = nullptr;
  reset_stacks();
  lay_out_threads();
  cudal1_state.block_dim = {block[0], block[1], block[2]};
  cudal1_state.grid_dim = {grid[0], grid[1], grid[2]};
  for (unsigned long long i = 0; i < blocks && !g.failed; i++) {
    run_block(block_at(launch->order == CUDAL1_REVERSE ? blocks - 1 - i : i, grid), 0);
    run_awaited();
  }
  if (g.waiting_blocks && !g.failed) {
    cudal1_state.block = g.waiting[0].block;
    note("deadlock", "a block waits for others that never come", nullptr);
  }
  return g.failed;
}

extern "C" int cudal1_barrier(int kind, int predicate, int line) {
  Fiber& self = *running;
  self.kind = kind;
  self.line = line;
  self.pc = __builtin_return_address(0);
  if (g.at_barrier == 0) {
    g.barrier_value = kind == CUDAL1_BARRIER_AND;
    g.barrier_line = line;
    g.barrier_kind = kind;
  } else if (g.barrier_line != line || g.barrier_kind != kind) {
    fail("barrier_divergence", "threads of one block wait at different barriers", self.pc);
  }
  if (kind == CUDAL1_BARRIER_COUNT) g.barrier_value += predicate != 0;
  if (kind == CUDAL1_BARRIER_AND) g.barrier_value &= predicate != 0;
  if (kind == CUDAL1_BARRIER_OR) g.barrier_value |= predicate != 0;
  self.state = State::AT_BARRIER;
  if (++g.at_barrier + g.exited == g.threads) release_barrier();
  wait_here();
  return (int)self.result;
}

extern "C" unsigned long long cudal1_collective(int kind, unsigned mask, unsigned long long value, int source,
                                                int line) {
  Fiber& self = *running;
  int i = number(&self);
  self.kind = kind;
  self.mask = mask;
  self.value = value;
  self.source = source;
  self.line = line;
  self.pc = __builtin_return_address(0);
  if (!(mask >> i % 32 & 1))
    fail("warp_misuse", "the calling lane is not in the mask of its own warp collective", self.pc);
  self.state = State::IN_COLLECTIVE;
  Warp& warp = g.warp[i / 32];
  warp.waiting |= 1u << i % 32;
  try_collective(warp, &fibers[i / 32 * 32], self);
  wait_here();
  return self.result;
}

extern "C" void cudal1_wait_for_blocks(int* count, int n) {
  Fiber& self = *running;
  self.pc = __builtin_return_address(0);
  if (++self.waits <= g.waits_over) {
    repeating = self.waits < g.waits_over;
    return;
  }
  if (n < 1 || n > MAX_WAITED_FOR || g.waiting_blocks == MAX_WAITING)
    fail("bad_wait", "a block may wait for 1 to 64 blocks", self.pc);
  if (++*count < 1 || *count > n) fail("bad_wait", "another number of blocks than it waits for shares a counter", self.pc);
  g.waiting[g.waiting_blocks++] = {cudal1_state.block, count, n, self.waits};
  drop_block();
}

// Which threads of a warp run together is nobody's to know: a GPU may have split them at any branch before, and
// joined them again or not. So a thread finds itself alone, which is as right as any other answer.
extern "C" unsigned cudal1_active_mask(void) { return 1u << number(running) % 32; }
extern "C" void cudal1_fence(void) {
  if (observer.fence) observer.fence();
}
extern "C" void cudal1_trap(void) { fail("trap", "the kernel called __trap()", __builtin_return_address(0)); }
extern "C" long long cudal1_clock(void) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}
