// host_driver.cpp: the host target behind the two driver functions that a launcher calls (launch.c).
#include <stdio.h>
#include <string.h>
#include "scheduler.h"

static char last_fault[400];

extern "C" {
// As cuLaunchKernel: 0, or 1 with the reason in cudal1_host_fault().
int cudal1_host_launch(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared_bytes, void*, void** params, void**) {
  Cudal1Launch launch = {(void (*)(void**))function, params, {gx, gy, gz}, {bx, by, bz}, shared_bytes, CUDAL1_FORWARD, 0};
  Cudal1Fault fault;
  if (!cudal1_launch(&launch, &fault)) return 0;
  snprintf(last_fault, sizeof last_fault, "%s: %s, block (%u, %u, %u), thread (%u, %u, %u)", fault.kind, fault.detail,
           fault.block.x, fault.block.y, fault.block.z, fault.thread.x, fault.thread.y, fault.thread.z);
  return 1;
}
// As cuMemsetD8Async.
int cudal1_host_memset(unsigned long long address, unsigned char value, size_t bytes, void*) {
  memset((void*)address, value, bytes);
  return 0;
}
const char* cudal1_host_fault(void) { return last_fault; }
}
