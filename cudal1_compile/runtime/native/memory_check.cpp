// memory_check.cpp: see memory_check.h.
#include "memory_check.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "scheduler.h"

// An access's size and direction are constants where hooks call: what they decide is decided by the compiler.
#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace cudal1 {
namespace {
const int MAX_AREAS = 64;
const int POISON = 0xff;  // of shared memory at a block's begin
const size_t LINE_BYTES = 128;

// Who touched a 4-byte cell last, packed: blocks are numbered from 1 over all launches, 0 is nobody. Not a struct of
// bit fields: what is written by the byte and read whole waits for the store, at every access.
using Stamp = uint64_t;
struct Field {
  int shift, bits;
  constexpr uint64_t mask() const { return ((1ull << bits) - 1) << shift; }
  constexpr uint64_t of(uint64_t value) const { return value << shift & mask(); }
  constexpr unsigned in(Stamp stamp) const { return (unsigned)((stamp & mask()) >> shift); }
};
constexpr Field BLOCK = {0, 24}, THREAD = {24, 10}, BARRIER = {34, 16}, WARP = {50, 9}, BYTES = {59, 4}, ATOMIC = {63, 1};
constexpr uint64_t MOMENT = BLOCK.mask() | THREAD.mask() | BARRIER.mask();
struct Cell {
  Stamp write, read[2];
};
struct Region {
  const char* name;
  char *low, *high;
  Area kind;
  Cell* cells;
  bool whole;  // no other area lies within it
};
Region regions[MAX_AREAS];
int region_count;
const char* base;             // of the kernel's object: addresses in keys are relative to it
unsigned block_number, first_of_launch;
bool fenced;                  // this block has passed a __threadfence: it may see what other blocks told
bool fenced_threads[MAX_THREADS];
// How far a block has told others what it did: by atomics and volatile writes of threads that have fenced.
struct Told {
  uint16_t barrier, warp[32];  // the most __syncthreads and __syncwarps that such a thread had passed
  uint32_t lanes[32];          // those threads, by warp
};
const unsigned MAX_TOLD = 1 << 16;  // blocks of one launch
Told* told;

// ---------------------------------------------------------------- cost
// A transaction is (warp, place in the code, how often the thread has been there, line). Threads of a warp
// run one after another here, so lanes meet through this key and not through time.
const int PLACES = 256;
struct Place {
  uint32_t pc, block, count;
};
Place places[MAX_THREADS][PLACES];
// The parts of one vload or vstore follow each other without a gap and count as one access.
const unsigned PART_BYTES = 16, VECTOR_BYTES = 128;
struct Vector {
  const char* end;
  uint64_t access;
  uint32_t block, bytes;
  bool write;
};
Vector vectors[MAX_THREADS];
const size_t SEEN = 1 << 22;
struct Seen {
  uint64_t key;
  uint32_t block;
};
Seen* seen;
size_t seen_count;
unsigned long long counted;

uint64_t mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ x >> 33;
}
uint32_t visits(int thread, uint32_t pc) {
  Place* mine = places[thread];
  for (uint32_t i = 0, at = pc * 2654435761u >> 24; i < PLACES; i++, at = (at + 1) % PLACES) {
    Place& p = mine[at];
    if (p.block != block_number) p = {pc, block_number, 0};
    if (p.pc == pc) return p.count++;
  }
  return mine[0].count++;  // more places than the table holds: they share one count
}
void count_line(uint64_t key) {
  if (seen_count > SEEN / 4 * 3) {
    memset(seen, 0, SEEN * sizeof *seen);
    seen_count = 0;
  }
  for (size_t at = key % SEEN;; at = (at + 1) % SEEN) {
    Seen& s = seen[at];
    if (s.block == block_number && s.key == key) return;
    if (s.block == block_number) continue;
    s = {key, block_number};
    seen_count++;
    counted++;
    return;
  }
}
uint64_t new_access(const Region& region, int thread, const void* pc) {
  uint32_t place = (uint32_t)((const char*)pc - base), visit = visits(thread, place);
  uint64_t which = (uint64_t)(&region - regions) << 8 | (uint64_t)(thread / 32);
  return mix(mix(which << 32 | place) + visit);
}
uint64_t access_key(const Region& region, const char* address, unsigned bytes, bool write, int thread, const void* pc) {
  if (bytes != PART_BYTES) return new_access(region, thread, pc);
  Vector& v = vectors[thread];
  bool goes_on = v.block == block_number && v.end == address && v.write == write && v.bytes < VECTOR_BYTES;
  if (!goes_on) v = {address, new_access(region, thread, pc), block_number, 0, write};
  v.end += bytes;
  v.bytes += bytes;
  return v.access;
}
void count(const Region& region, const char* address, unsigned bytes, bool write, int thread, const void* pc) {
  uint64_t access = access_key(region, address, bytes, write, thread, pc);
  size_t first = (size_t)(address - region.low) / LINE_BYTES;
  size_t last = (size_t)(address + bytes - 1 - region.low) / LINE_BYTES;
  for (size_t line = first; line <= last; line++) count_line(mix(access + line * 0x9e3779b97f4a7c15ull));
}

// ---------------------------------------------------------------- faults
[[noreturn]] __attribute__((cold, noinline)) void complain(const char* kind, const Region* region, const char* address,
                                                           unsigned bytes, bool write, const void* pc,
                                                           const char* more) {
  char text[220];
  const char* what = write ? "write" : "read";
  if (region)
    snprintf(text, sizeof text, "%s of %u bytes at byte %ld of %s (%ld bytes)%s", what, bytes,
             (long)(address - region->low), region->name, (long)(region->high - region->low), more);
  else
    snprintf(text, sizeof text, "%s of %u bytes at no memory of this kernel%s", what, bytes, more);
  fail(kind, text, pc);
}
const Region* region_near(const char* address) {
  const Region* best = nullptr;
  size_t best_distance = 1 << 20;
  for (int i = 0; i < region_count; i++) {
    const Region& r = regions[i];
    if (r.kind == Area::FREE) continue;
    size_t distance = address < r.low ? (size_t)(r.low - address) : address >= r.high ? (size_t)(address - r.high) : 0;
    if (distance < best_distance) {
      best = &r;
      best_distance = distance;
    }
  }
  return best;
}
ALWAYS_INLINE const Region* find(const char* address, const void* pc) {
  static uint8_t last_at[64];  // a place in the code nearly always touches one area
  uint8_t& last = last_at[(uintptr_t)pc >> 2 & 63];
  if (address >= regions[last].low && address < regions[last].high) return &regions[last];
  for (int i = 0; i < region_count; i++) {
    if (address < regions[i].low || address >= regions[i].high) continue;
    if (regions[i].whole) last = (uint8_t)i;
    return &regions[i];
  }
  return nullptr;
}

// ---------------------------------------------------------------- races
bool is_shared(Area kind) { return kind == Area::STATIC_SHARED || kind == Area::DYNAMIC_SHARED; }

Told* told_by(unsigned block) { return block - first_of_launch < MAX_TOLD ? &told[block - first_of_launch] : nullptr; }
void tell(const Fiber& self) {
  int thread = number(&self), warp = thread / 32;
  Told* mine = told_by(block_number);
  if (!mine || !fenced_threads[thread]) return;
  if (self.barrier_epoch > mine->barrier) mine->barrier = (uint16_t)self.barrier_epoch;
  if (self.warp_epoch > mine->warp[warp]) mine->warp[warp] = (uint16_t)self.warp_epoch;
  mine->lanes[warp] |= 1u << thread % 32;
}
// Whether another block's access came before its thread, or one that it had met at a barrier since, told of it.
__attribute__((noinline)) bool was_told(Stamp old) {
  const Told* theirs = told_by(BLOCK.in(old));
  if (!theirs) return true;
  unsigned thread = THREAD.in(old), warp = thread / 32, epochs = theirs->warp[warp];
  return BARRIER.in(old) < theirs->barrier || theirs->lanes[warp] >> thread % 32 & 1 || WARP.in(old) < epochs;
}
ALWAYS_INLINE bool ordered(Stamp old, Stamp now, bool shared) {
  const uint64_t both = old & now, differs = old ^ now;
  if (!(old & BLOCK.mask()) || !(both & BYTES.mask()) || both & ATOMIC.mask()) return true;
  if (differs & BLOCK.mask()) return shared || BLOCK.in(old) < first_of_launch || (fenced && was_told(old));
  if (!(differs & THREAD.mask())) return true;
  if (differs & BARRIER.mask()) return true;  // a __syncthreads lies between
  return THREAD.in(old) / 32 == THREAD.in(now) / 32 && WARP.in(old) < WARP.in(now);
}
ALWAYS_INLINE void note(Cell& cell, Stamp now, bool write) {
  Stamp& same = write ? cell.write : cell.read[0];
  bool again = !((same ^ now) & MOMENT);
  if (again) now |= same & BYTES.mask();
  if (!write && !again) cell.read[1] = cell.read[0];
  same = now;
}
ALWAYS_INLINE void check_cell(const Region& region, Cell& cell, Stamp now, bool shared, const char* address,
                              unsigned bytes, bool write, const void* pc) {
  if (!ordered(cell.write, now, shared))
    complain("race", &region, address, bytes, write, pc, ", unordered with a write by another thread");
  for (Stamp read : cell.read)
    if (write && !ordered(read, now, shared))
      complain("race", &region, address, bytes, write, pc, ", unordered with a read by another thread");
  unsigned writer = BLOCK.in(cell.write);
  bool set = shared ? writer == block_number : writer != 0 || region.kind == Area::GLOBAL_SET;
  if (!write && !set) complain("uninitialised", &region, address, bytes, write, pc, ", which nobody wrote yet");
}
ALWAYS_INLINE void check_cells(const Region& region, const Fiber& self, const char* address, unsigned bytes,
                               bool write, bool atomic, const void* pc) {
  const Stamp whole = BLOCK.of(block_number) | THREAD.of((unsigned)number(&self)) | BARRIER.of(self.barrier_epoch) |
                      WARP.of(self.warp_epoch) | ATOMIC.of(atomic);
  const bool shared = is_shared(region.kind);
  for (const char* at = address; at < address + bytes;) {
    size_t offset = (size_t)(at - region.low), within = offset & 3;
    size_t covered = 4 - within < (size_t)(address + bytes - at) ? 4 - within : (size_t)(address + bytes - at);
    Stamp now = whole | BYTES.of(((1u << covered) - 1) << within);
    Cell& cell = region.cells[offset >> 2];
    check_cell(region, cell, now, shared, address, bytes, write, pc);
    note(cell, now, write);
    at += covered;
  }
}

// ---------------------------------------------------------------- waits that nothing ends
// Blocks run one after another here, and a thread runs until it meets the others: what it looks at again and again,
// and at nothing else, does not change any more.
const unsigned SPINS = 1 << 20, PLACES_OF_A_WAIT = 8;
struct Look {
  const void *where, *pc;
  uint64_t value;
};
Look looks[PLACES_OF_A_WAIT];
// By their marks, how many of the looks have each: nearly always that tells that a look is new. Single bytes, for a
// list that is compared whole would wait for the store before, at every access.
uint8_t marks[PLACES_OF_A_WAIT], having[256] = {PLACES_OF_A_WAIT};
const Fiber* looking;
unsigned oldest_look, known_looks;
template <class T> uint64_t load(const void* where) {
  T value;
  memcpy(&value, where, sizeof value);
  return value;
}
ALWAYS_INLINE uint64_t value_at(const void* where, unsigned bytes) {  // its first eight bytes at most
  switch (bytes) {
    case 1: return load<uint8_t>(where);
    case 2: return load<uint16_t>(where);
    case 4: return load<uint32_t>(where);
    default: break;
  }
  if (bytes >= 8) return load<uint64_t>(where);
  uint64_t value = 0;
  memcpy(&value, where, bytes);
  return value;
}
ALWAYS_INLINE void count_looks(const Fiber* self, const void* where, unsigned bytes, const void* pc) {
  const uint64_t value = value_at(where, bytes);
  const uint32_t both = (uint32_t)(uintptr_t)where ^ (uint32_t)(uintptr_t)pc * 2654435761u;
  const uint8_t mark = (uint8_t)(both * 2654435761u >> 24);
  if (having[mark] && looking == self) {
    bool known = false;
    for (const Look& old : looks) known |= old.where == where && old.pc == pc && old.value == value;
    if (known) {
      if (++known_looks == SPINS)
        fail("deadlock", "a thread waits without end: no block before it changes what it looks at", pc);
      return;
    }
  }
  looking = self;
  known_looks = 0;
  const unsigned slot = oldest_look++ % PLACES_OF_A_WAIT;
  having[marks[slot]]--;
  having[marks[slot] = mark]++;
  looks[slot] = {where, pc, value};
}

ALWAYS_INLINE void judge(const Fiber* self, const char* address, unsigned bytes, bool write, bool atomic,
                         const void* pc, bool tells) {
  const Region* region = find(address, pc);
  bool beyond = !region || address + bytes > region->high || (write && region->kind == Area::FREE);
  if (beyond)
    complain("out_of_bounds", region && region->kind != Area::FREE ? region : region_near(address), address, bytes, write, pc, "");
  if (region->kind == Area::FREE) return;
  count_looks(self, address, bytes, pc);
  if (write && region->kind == Area::INPUT) complain("input_written", region, address, bytes, write, pc, "");
  if (repeating && !is_shared(region->kind)) return;  // counted and looked at when it ran first
  if (!is_shared(region->kind)) count(*region, address, bytes, write, number(self), pc);
  if (region->kind != Area::INPUT) check_cells(*region, *self, address, bytes, write, atomic, pc);
  if (tells && !is_shared(region->kind)) tell(*self);
}
// A thread's own stack, which takes most accesses, is no concern of ours.
ALWAYS_INLINE bool is_own(const Fiber* self, const void* where, const void* pc) {
  if (!self) return true;
  if (expired) fail("timeout", "no end within the time limit: an endless loop?", pc);
  return on_stack(self, where);
}
void access(const void* where, unsigned bytes, bool write, bool atomic, const void* pc, bool tells = false) {
  const Fiber* self = current();
  if (!is_own(self, where, pc)) judge(self, (const char*)where, bytes, write, atomic, pc, tells);
}
template <unsigned SIZE, bool WRITE>
__attribute__((noinline)) void judge_plain(const Fiber* self, const void* where, const void* pc) {
  judge(self, (const char*)where, SIZE, WRITE, false, pc, false);
}
template <unsigned SIZE, bool WRITE> ALWAYS_INLINE void plain_access(const void* where, const void* pc) {
  const Fiber* self = current();
  if (!is_own(self, where, pc)) judge_plain<SIZE, WRITE>(self, where, pc);
}

// Accesses to global memory that mean less than they seem to, where this launch has written before.
void check_written(const void* where, unsigned bytes, bool own_too, const void* pc, const char* more) {
  const char* address = (const char*)where;
  const Region* region = current() && !repeating && !on_stack(current(), where) ? find(address, pc) : nullptr;
  if (!region || !region->cells || is_shared(region->kind) || address + bytes > region->high) return;
  const size_t first = (size_t)(address - region->low) >> 2, last = (size_t)(address + bytes - 1 - region->low) >> 2;
  for (size_t cell = first; cell <= last; cell++) {
    const unsigned writer = BLOCK.in(region->cells[cell].write);
    if (writer >= first_of_launch && (own_too || writer != block_number))
      complain("race", region, address, bytes, false, pc, more);
  }
}

void poison(const Region& region) { memset(region.low, POISON, (size_t)(region.high - region.low)); }
void block_begins() {
  block_number++;
  fenced = false;
  memset(fenced_threads, 0, sizeof fenced_threads);
  if (Told* mine = told_by(block_number)) *mine = {};
  seen_count = 0;
  for (int i = 0; i < region_count; i++)
    if (is_shared(regions[i].kind)) poison(regions[i]);
}
void* reserve(size_t bytes) {
  void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return found == MAP_FAILED ? nullptr : found;
}
}  // namespace

void add_area(const char* name, void* low, size_t bytes, Area kind) {
  if (bytes == 0 || region_count == MAX_AREAS) return;
  Region region = {name, (char*)low, (char*)low + bytes, kind, nullptr, true};
  if (kind != Area::FREE && kind != Area::INPUT) region.cells = (Cell*)reserve((bytes / 4 + 2) * sizeof(Cell));
  for (int i = 0; i < region_count; i++) {
    Region& other = regions[i];
    if (region.low >= other.high || other.low >= region.high) continue;
    if (kind == Area::FREE) region.whole = false;  // only such a one may enclose others
    if (other.kind == Area::FREE) other.whole = false;
  }
  regions[region_count++] = region;
}
bool begin_checks(const void* object_base) {
  base = (const char*)object_base;
  seen = (Seen*)reserve(SEEN * sizeof *seen);
  told = (Told*)reserve(MAX_TOLD * sizeof *told);
  observer = {block_begins, [] { fenced = fenced_threads[number(current())] = true; }};
  bool all = seen && told;
  for (int i = 0; i < region_count; i++)
    all = all && (regions[i].cells || regions[i].kind == Area::FREE || regions[i].kind == Area::INPUT);
  return all;
}
void begin_checked_launch(unsigned dynamic_bytes) {
  first_of_launch = block_number + 1;
  for (int i = 0; i < region_count; i++)
    if (regions[i].kind == Area::DYNAMIC_SHARED) regions[i].high = regions[i].low + dynamic_bytes;
}
unsigned long long transactions() { return counted; }
}  // namespace cudal1

// ---------------------------------------------------------------- the compiler's hooks
using cudal1::access;
using cudal1::plain_access;
#define PC __builtin_return_address(0)
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define HOOKS(N)                                                                              \
  void __tsan_read##N(void* a) { plain_access<N, false>(a, PC); }                             \
  void __tsan_write##N(void* a) { plain_access<N, true>(a, PC); }                             \
  void __tsan_unaligned_read##N(void* a) { plain_access<N, false>(a, PC); }                   \
  void __tsan_unaligned_write##N(void* a) { plain_access<N, true>(a, PC); }                   \
  void __tsan_volatile_read##N(void* a) { access(a, N, false, false, PC); }                   \
  void __tsan_volatile_write##N(void* a) { access(a, N, true, false, PC, true); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void cudal1_cached_read(const void* p, unsigned long bytes) {
  cudal1::check_written(p, (unsigned)bytes, true, PC, " by __ldg, which need not see what this launch wrote");
}
void cudal1_block_atomic(const void* p, unsigned long bytes) {
  cudal1::check_written(p, (unsigned)bytes, false, PC, " by an atomic of one block, where another block wrote");
}
void __tsan_read_range(void* a, unsigned long n) { access(a, (unsigned)n, false, false, PC); }
void __tsan_write_range(void* a, unsigned long n) { access(a, (unsigned)n, true, false, PC); }
// host.h makes every atomic from a load and a compare-exchange: the second one is checked and counted.
#define ATOMIC_HOOKS(BITS, T)                                                                                \
  T __tsan_atomic##BITS##_load(const volatile T* a, int) { return *a; }                                      \
  int __tsan_atomic##BITS##_compare_exchange_strong(volatile T* a, T* expected, T v, int, int) {             \
    access((const void*)a, sizeof(T), true, true, PC, true);                                                 \
    return __atomic_compare_exchange_n(a, expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);           \
  }                                                                                                          \
  T __tsan_atomic##BITS##_compare_exchange_val(volatile T* a, T expected, T v, int, int) {                   \
    access((const void*)a, sizeof(T), true, true, PC, true);                                                 \
    __atomic_compare_exchange_n(a, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);                 \
    return expected;                                                                                         \
  }
ATOMIC_HOOKS(8, uint8_t)
ATOMIC_HOOKS(16, uint16_t)
ATOMIC_HOOKS(32, uint32_t)
ATOMIC_HOOKS(64, uint64_t)

// -fsanitize=bounds-strict,alignment without libubsan; both handlers begin with a source location.
struct Cudal1Source {
  const char* file;
  uint32_t line, column;
};
void __ubsan_handle_out_of_bounds_abort(Cudal1Source*, unsigned long index) {
  char text[80];
  snprintf(text, sizeof text, "index %ld of an array", (long)index);
  cudal1::fail("out_of_bounds", text, PC);
}
void __ubsan_handle_type_mismatch_v1_abort(Cudal1Source*, unsigned long address) {
  char text[80];
  snprintf(text, sizeof text, "a vector access to an address that ends in 0x%02lx", address & 0xff);
  cudal1::fail("misaligned", text, PC);
}
// The linker's --wrap sends the kernel's own calls here; they would escape the hooks otherwise.
void* __wrap_memcpy(void* to, const void* from, unsigned long n) {
  if (n) access(from, (unsigned)n, false, false, PC), access(to, (unsigned)n, true, false, PC);
  return memcpy(to, from, n);
}
void* __wrap_memmove(void* to, const void* from, unsigned long n) {
  if (n) access(from, (unsigned)n, false, false, PC), access(to, (unsigned)n, true, false, PC);
  return memmove(to, from, n);
}
void* __wrap_memset(void* to, int value, unsigned long n) {
  if (n) access(to, (unsigned)n, true, false, PC);
  return memset(to, value, n);
}
void __stack_chk_fail() { cudal1::fail("out_of_bounds", "a local array was overrun", PC); }
}
