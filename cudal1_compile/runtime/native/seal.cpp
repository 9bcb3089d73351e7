// seal.cpp: see seal.h.
#include "seal.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "the host target's seal knows x86-64 and aarch64"
#endif

namespace cudal1 {
namespace {
// Landlock's numbers, which older kernel headers lack; the same on every architecture.
const int CREATE_RULESET = 444, ADD_RULE = 445, RESTRICT_SELF = 446;
const uint64_t READ_FILE = 1 << 2;
const uint64_t FILES[] = {0, 0x1fff, 0x3fff, 0x7fff, 0x7fff, 0xffff};  // all rights that a version knows
struct Ruleset {
  uint64_t files, network, scope;
};
struct __attribute__((packed)) BeneathPath {
  uint64_t rights;
  int32_t file;
};

// ---------------------------------------------------------------- filters
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, field))
#define LOW_WORD(i) LOAD(args[i])  // little-endian
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_##what)
#define REFUSE RETURN(KILL_PROCESS)
#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), RETURN(ALLOW)
// The call where argument i is this very number; what follows sees the next call's number again.
#define ALLOW_IF_EQUAL(name, i, value)                                                                     \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 4), LOW_WORD(i),                                      \
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1), RETURN(ALLOW), REFUSE
// The call where argument i has not all of these bits.
#define ALLOW_UNLESS_ALL(name, i, bits)                                                                    \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 5), LOW_WORD(i),                                      \
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, bits), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, bits, 1, 0),          \
      RETURN(ALLOW), REFUSE
// The call where argument i has none of these bits.
#define ALLOW_WITHOUT(name, i, bits)                                                                       \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 4), LOW_WORD(i),                                      \
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 1, 0), RETURN(ALLOW), REFUSE
#define OWN_CALLS                                                                                          \
  LOAD(arch), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0), REFUSE, LOAD(nr)

const sock_filter LOADING[] = {
    OWN_CALLS,
    ALLOW_WITHOUT(openat, 2, O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND),
    ALLOW_UNLESS_ALL(mmap, 2, PROT_WRITE | PROT_EXEC),
    ALLOW_WITHOUT(mprotect, 2, PROT_EXEC),
    ALLOW_IF_EQUAL(write, 0, 1),
    ALLOW_IF_EQUAL(seccomp, 0, SECCOMP_SET_MODE_FILTER),
    ALLOW(read),
    ALLOW(pread64),
    ALLOW(fstat),
    ALLOW(newfstatat),
    ALLOW(close),
    ALLOW(munmap),
    ALLOW(madvise),
    ALLOW(brk),
    ALLOW(getcwd),
    ALLOW(getrandom),
    ALLOW(futex),
    ALLOW(rt_sigreturn),
    ALLOW(exit),
    ALLOW(exit_group),
    REFUSE,
};
const sock_filter RUNNING[] = {
    OWN_CALLS,        ALLOW_IF_EQUAL(read, 0, 0), ALLOW_IF_EQUAL(write, 0, 1),
    ALLOW(rt_sigreturn), ALLOW(exit),               ALLOW(exit_group),
    REFUSE,
};

template <size_t N> bool add_filter(const sock_filter (&code)[N]) {
  sock_fprog program = {(unsigned short)N, (sock_filter*)code};
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
}
}  // namespace

Namespaces own_namespaces() {
  const int both = CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC;
  if (unshare(both) == 0 || unshare(CLONE_NEWUSER | both) == 0) return {true, true};
  return {false, unshare(CLONE_NEWNET) == 0};
}

bool refuse_files(const char* readable) {
  long version = syscall(CREATE_RULESET, nullptr, 0, 1);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (version < 1) return false;
  Ruleset rules = {FILES[version < 5 ? version : 5], version >= 4 ? 3u : 0u, version >= 6 ? 3u : 0u};
  size_t size = version >= 6 ? 24 : version >= 4 ? 16 : 8;
  int ruleset = (int)syscall(CREATE_RULESET, &rules, size, 0);
  BeneathPath rule = {READ_FILE, open(readable, O_PATH | O_CLOEXEC)};
  bool done = ruleset >= 0 && syscall(ADD_RULE, ruleset, 1, &rule, 0) == 0 && syscall(RESTRICT_SELF, ruleset, 0) == 0;
  close(rule.file);
  close(ruleset);
  return done;
}

bool seal_for_loading() { return add_filter(LOADING); }
bool seal_for_running() { return add_filter(RUNNING); }

int filters_of(pid_t process) {
  char path[64], line[256];
  snprintf(path, sizeof path, "/proc/%d/status", (int)process);
  FILE* file = fopen(path, "r");
  if (!file) return -1;
  int mode = -1, filters = -1;
  while (fgets(line, sizeof line, file)) {
    sscanf(line, "Seccomp: %d", &mode);
    sscanf(line, "Seccomp_filters: %d", &filters);
  }
  fclose(file);
  // kernels before 5.9 do not count: one filter at least
  return filters >= 0 ? filters : mode == 2 ? 1 : mode == 0 ? 0 : -1;
}
}  // namespace cudal1
