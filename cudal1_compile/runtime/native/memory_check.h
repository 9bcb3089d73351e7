// memory_check.h: judges every load and store of a kernel built with -fsanitize=thread.
//
// The compiler's __tsan_* hooks are ours, libtsan is not linked. Found: accesses outside what the kernel was
// given, writes to inputs, reads of memory that nobody wrote, data races within and between blocks, misaligned
// vectors. Counted: 128-byte transactions to global memory, one for each line that a warp touches in one access.
#pragma once
#include <stddef.h>

namespace cudal1 {
enum class Area { INPUT, GLOBAL, GLOBAL_SET, STATIC_SHARED, DYNAMIC_SHARED, FREE };

// GLOBAL: outputs and scratch, unwritten yet. GLOBAL_SET: zeroed scratch. FREE: may be read (arguments, constants).
void add_area(const char* name, void* low, size_t bytes, Area kind);
bool begin_checks(const void* object_base);  // after the last add_area; false: no memory for the shadow
void begin_checked_launch(unsigned dynamic_bytes);
unsigned long long transactions();
}  // namespace cudal1
