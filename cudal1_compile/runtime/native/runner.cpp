// runner.cpp: the child process that runs an unproven kernel. runner REQUEST -> one line of JSON on stdout.
//
// The request's lines (hostrun.py writes them):
//   limits MEMORY_BYTES CPU_MS ORDER SEED     object PATH     data PATH
//   buffer NAME in|out|scratch OFFSET BYTES     (of the data file; pages around a buffer hold canaries)
//   int VALUE     zero BUFFER
//   launch ENTRY GX GY GZ BX BY BZ SHARED_BYTES N_ARGS ARG...     (b3: buffer 3, i0: integer 0)
//
// Two processes. The first never opens the object: it watches the second, asks the kernel (/proc), not the second, which
// seal is in place before it lets it go on, and tells on its first line how far that one came and how it ended. What
// follows on the second line are the second's own words, which loaded code could have written.
//
//   runner ---fork--> limits, no files but the object, "F", first filter, "L" -> [runner looks] -> dlopen, second filter,
//                     "R" -> [runner looks] -> the kernel, report
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include <string>
#include <vector>
#include "scheduler.h"
#include "seal.h"
#ifdef CUDAL1_CHECKED
#include "memory_check.h"
#endif

namespace {
const size_t PAGE = 4096;
const size_t HUGE_PAGE = 2 << 20;
const size_t GUARD = 1 << 30;  // address space only: what an int can index by mistake mostly lands here
const int UNSEALED = 4;  // the exit code of a process that runs nothing
const size_t MAX_ARGS = 128;
const size_t MAX_BUFFERS = 96;

struct Buffer {
  std::string name, kind;
  size_t offset, bytes;
};
struct Step {
  Cudal1Launch launch;
  void* args[MAX_ARGS];
};
struct Request {
  long memory_bytes, cpu_ms;
  int order;
  unsigned seed;
  bool packed;
  std::string object, data;
  std::vector<Buffer> buffers;
  std::vector<int> zeroed;
  std::vector<std::vector<std::string>> launches;
};
// What a kernel's arguments are read from. Not on the heap, where a kernel's shared memory lies.
Step steps[MAX_LAUNCHES];
size_t step_count;
int ints[MAX_ARGS];
size_t int_count;
char* pointers[MAX_BUFFERS];
void* object;
const char* object_base;
size_t object_bytes;
char* shared_low;
size_t shared_bytes;

// ---------------------------------------------------------------- reports
[[noreturn]] void leave(int code) {
  for (;;) syscall(SYS_exit_group, code);
}
void say(const char* text, int length) {
  while (length > 0) {
    long n = write(1, text, (size_t)length);
    if (n <= 0) return;
    text += n;
    length -= (int)n;
  }
}
bool in_object(const void* pc) {
  return (const char*)pc >= object_base && (const char*)pc < object_base + object_bytes;
}
[[noreturn]] void report(const char* kind, const char* detail, const void* pc, Cudal1Index block, Cudal1Index thread) {
  char line[900];
  long offset = pc && in_object(pc) ? (long)((const char*)pc - object_base) - 1 : -1;
  int n = snprintf(line, sizeof line,
                   "{\"status\": \"fault\", \"kind\": \"%s\", \"detail\": \"%s\", \"pc\": %ld, "
                   "\"block\": [%u, %u, %u], \"thread\": [%u, %u, %u]}\n",
                   kind, detail, offset, block.x, block.y, block.z, thread.x, thread.y, thread.z);
  say(line, n);
  leave(3);
}
[[noreturn]] void give_up(const char* kind, const std::string& detail) {
  std::string clean;
  for (char c : detail)
    if (c != '"' && c != '\\' && c >= ' ') clean += c;
  report(kind, clean.substr(0, 500).c_str(), nullptr, {0, 0, 0}, {0, 0, 0});
}
const void* program_counter(void* context) {
#if defined(__x86_64__)
  return (const void*)(((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP] + 1);
#elif defined(__aarch64__)
  return (const void*)(((ucontext_t*)context)->uc_mcontext.pc + 1);
#else
  return nullptr;
#endif
}
void on_signal(int number, siginfo_t*, void* context) {
  if (number == SIGPROF && !cudal1::expired && !in_object(program_counter(context))) {
    cudal1::expired = true;  // inside the scheduler or a check: the next one of those names the place
    return;
  }
  const char* kind = number == SIGPROF ? "timeout" : number == SIGFPE ? "arithmetic" : "memory_fault";
  const char* detail = number == SIGPROF   ? "no end within the time limit: an endless loop?"
                       : number == SIGFPE  ? "integer division by zero"
                       : number == SIGILL  ? "illegal instruction"
                                           : "access to an address that is not mapped";
  cudal1::Fiber* fiber = cudal1::current();
  report(kind, detail, program_counter(context), cudal1_state.block, fiber ? fiber->index : Cudal1Index{0, 0, 0});
}
void catch_signals() {
  stack_t stack = {};
  stack.ss_size = 64 << 10;
  stack.ss_sp = malloc(stack.ss_size);
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGPROF, SIGABRT}) sigaction(number, &action, nullptr);
}

// ---------------------------------------------------------------- the request
Request read_request(const char* path) {
  Request r = {};
  FILE* file = fopen(path, "r");
  if (!file) give_up("load_error", "no request");
  char* text = nullptr;
  size_t room = 0;
  while (getline(&text, &room, file) > 0) {
    std::vector<std::string> words;
    for (char* word = strtok(text, " \n"); word; word = strtok(nullptr, " \n")) words.push_back(word);
    if (words.empty()) continue;
    const std::string& key = words[0];
    auto number = [&](size_t i) { return atol(words.at(i).c_str()); };
    if (key == "limits") {
      r.memory_bytes = number(1), r.cpu_ms = number(2);
      r.order = (int)number(3), r.seed = (unsigned)number(4);
    }
    if (key == "object") r.object = words.at(1);
    if (key == "data") r.data = words.at(1);
    if (key == "buffer") r.buffers.push_back({words.at(1), words.at(2), (size_t)number(3), (size_t)number(4)});
    if (key == "int" && int_count < MAX_ARGS) ints[int_count++] = (int)number(1);
    if (key == "packed") r.packed = true;
    if (key == "zero") r.zeroed.push_back((int)number(1));
    if (key == "launch") r.launches.push_back(words);
  }
  free(text);
  fclose(file);
  return r;
}
// Of a block of any launch.
int most_threads(const Request& r) {
  unsigned long most = 1;
  for (const std::vector<std::string>& w : r.launches) {
    unsigned long threads = 1;
    for (size_t d = 5; d < 8; d++) threads *= strtoul(w.at(d).c_str(), nullptr, 10);
    if (threads > most) most = threads;
  }
  return most > (unsigned long)cudal1::MAX_THREADS ? cudal1::MAX_THREADS : (int)most;
}
// A part of the file at the start of a huge page, or a page later, with nothing for some GUARD before and behind it.
char* map_alone(int fd, size_t begin, size_t bytes, const std::string& name) {
  bytes = (bytes + PAGE - 1) / PAGE * PAGE;
  size_t all = bytes + 2 * GUARD + HUGE_PAGE;
  char* room = (char*)mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == (char*)MAP_FAILED) give_up("out_of_memory", "no address space for " + name);
  char* start = (char*)(((uintptr_t)room + GUARD + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
  start += begin / PAGE % 2 * PAGE;
  void* at = mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)begin);
  if (at == MAP_FAILED) give_up("out_of_memory", "cannot map " + name);
  return (char*)at;
}
void map_buffers(const Request& r) {
  int fd = open(r.data.c_str(), O_RDWR);
  if (fd < 0) give_up("load_error", "no data file");
  if (r.buffers.size() > MAX_BUFFERS) give_up("load_error", "too many buffers");
  char* whole = r.packed ? map_alone(fd, 0, (size_t)lseek(fd, 0, SEEK_END), "the buffers") : nullptr;
  for (size_t n = r.buffers.size(), j = 0; j < n; j++) {  // OFFSET is 256 bytes into the page: canaries on both sides
    const size_t i = r.order == 1 ? n - 1 - j : j;  // what is mapped first lies highest
    const Buffer& b = r.buffers[i];
    size_t begin = b.offset / PAGE * PAGE, inside = b.offset - begin;
    pointers[i] = whole ? whole + b.offset : map_alone(fd, begin, inside + b.bytes + 256, b.name) + inside;
  }
  close(fd);
}
void plan_steps(const Request& r) {
  if (r.launches.size() > MAX_LAUNCHES) give_up("load_error", "too many launches");
  step_count = r.launches.size();
  for (size_t i = 0; i < r.launches.size(); i++) {
    const std::vector<std::string>& w = r.launches[i];
    Step& step = steps[i];
    Cudal1Launch& l = step.launch;
    auto number = [&](size_t k) { return (unsigned)strtoul(w.at(k).c_str(), nullptr, 10); };
    std::string entry = "cudal1_entry_" + w.at(1);
    l.entry = (void (*)(void**))dlsym(object, entry.c_str());
    if (!l.entry) give_up("load_error", "the object has no " + entry);
    for (int d = 0; d < 3; d++) l.grid[d] = number(2 + (size_t)d), l.block[d] = number(5 + (size_t)d);
    l.dynamic_bytes = number(8);
    l.order = r.order;
    l.seed = r.seed;
    l.args = step.args;
    size_t n = number(9);
    if (n > MAX_ARGS) give_up("load_error", "too many arguments");
    for (size_t k = 0; k < n; k++) {
      size_t which = strtoul(w.at(10 + k).c_str() + 1, nullptr, 10);
      step.args[k] = w[10 + k][0] == 'b' ? (void*)&pointers[which % MAX_BUFFERS] : (void*)&ints[which % MAX_ARGS];
    }
  }
}

// ---------------------------------------------------------------- the object
int find_object(dl_phdr_info* info, size_t, void* path) {
  if (!info->dlpi_name || strcmp(info->dlpi_name, (const char*)path) != 0) return 0;
  object_base = (const char*)info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& h = info->dlpi_phdr[i];
    if (h.p_type == PT_LOAD && h.p_vaddr + h.p_memsz > object_bytes) object_bytes = h.p_vaddr + h.p_memsz;
    if (h.p_type != PT_TLS) continue;
    shared_low = (char*)info->dlpi_tls_data;
    shared_bytes = h.p_memsz;
  }
  return 1;
}
void load_object(const std::string& path) {
  object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!object) give_up("load_error", dlerror());
  void (*touch)() = (void (*)())dlsym(object, "cudal1_touch_shared");
  if (touch) touch();  // makes this thread's copy of the TLS segment, which is the static shared memory
  dl_iterate_phdr(find_object, (void*)path.c_str());
}

// ---------------------------------------------------------------- giving up privileges
void set_limit(int resource, rlim_t value) {
  rlimit limit = {value, value};
  setrlimit((__rlimit_resource_t)resource, &limit);
}
void limit_resources(const Request& r) {
  set_limit(RLIMIT_CORE, 0);
  set_limit(RLIMIT_FSIZE, 0);
  set_limit(RLIMIT_NPROC, 0);
  set_limit(RLIMIT_NOFILE, 16);
  set_limit(RLIMIT_DATA, (rlim_t)r.memory_bytes);
  set_limit(RLIMIT_CPU, (rlim_t)(2 * r.cpu_ms / 1000 + 10));  // the clock of start_clock comes first
}
// Says how far it is, and waits until the watching process has seen for itself.
void wait_at(char step) {
  char answer = 0;
  say(&step, 1);
  if (read(0, &answer, 1) != 1 || answer != step) leave(UNSEALED);
}
// Of CPU time: a kernel that waits for a busy machine does not hang.
void start_clock(long cpu_ms) {
  itimerval timer = {};
  timer.it_value = {cpu_ms / 1000, cpu_ms % 1000 * 1000};
  timer.it_interval = {0, 200 * 1000};
  setitimer(ITIMER_PROF, &timer, nullptr);
}

#ifdef CUDAL1_CHECKED
void describe_memory(const Request& r) {
  using cudal1::Area;
  for (size_t i = 0; i < r.buffers.size(); i++) {
    const Buffer& b = r.buffers[i];
    Area kind = b.kind == "in" ? Area::INPUT : Area::GLOBAL;
    for (int zeroed : r.zeroed)
      if ((size_t)zeroed == i) kind = Area::GLOBAL_SET;
    cudal1::add_area(b.name.c_str(), pointers[i], b.bytes, kind);
  }
  unsigned dynamic = 0;
  for (size_t i = 0; i < step_count; i++)
    if (steps[i].launch.dynamic_bytes > dynamic) dynamic = steps[i].launch.dynamic_bytes;
  cudal1::add_area("static shared memory", shared_low, shared_bytes, Area::STATIC_SHARED);
  cudal1::add_area("dynamic shared memory", cudal1_dynamic, dynamic, Area::DYNAMIC_SHARED);
  cudal1::add_area("indices", &cudal1_state, sizeof cudal1_state, Area::FREE);
  cudal1::add_area("arguments", steps, sizeof steps, Area::FREE);
  cudal1::add_area("integers", ints, sizeof ints, Area::FREE);
  cudal1::add_area("pointers", pointers, sizeof pointers, Area::FREE);
  cudal1::add_area("constants", (void*)object_base, object_bytes, Area::FREE);
  if (!cudal1::begin_checks(object_base)) give_up("out_of_memory", "no room for the shadow memory");
}
#endif
// ---------------------------------------------------------------- the second process
[[noreturn]] void open_and_run(const Request& r) {
  cudal1::prepare(most_threads(r));
  map_buffers(r);
  limit_resources(r);
  catch_signals();
  if (cudal1::refuse_files(r.object.c_str())) say("F", 1);
  start_clock(r.cpu_ms);
  if (!cudal1::seal_for_loading()) leave(UNSEALED);
  wait_at('L');
  load_object(r.object);
  plan_steps(r);
#ifdef CUDAL1_CHECKED
  describe_memory(r);
#endif
  if (!cudal1::seal_for_running()) leave(UNSEALED);
  wait_at('R');
  for (int i : r.zeroed) memset(pointers[i], 0, r.buffers[(size_t)i].bytes);
  Cudal1Fault fault;
  for (size_t i = 0; i < step_count; i++) {
#ifdef CUDAL1_CHECKED
    cudal1::begin_checked_launch(steps[i].launch.dynamic_bytes);
#endif
    if (cudal1_launch(&steps[i].launch, &fault)) report(fault.kind, fault.detail, fault.pc, fault.block, fault.thread);
  }
  unsigned long long lines = 0;
#ifdef CUDAL1_CHECKED
  lines = cudal1::transactions();
#endif
  char text[200];
  int n = snprintf(text, sizeof text, "{\"status\": \"ok\", \"transactions\": %llu, \"barriers\": %llu}\n", lines,
                   cudal1::barriers_passed);
  say(text, n);
  leave(0);
}

// ---------------------------------------------------------------- the first process
struct Watch {
  pid_t child;
  int words, answers;  // pipes from and to it
  int filters;         // that this process has itself
};
// The next byte that it says; 0 at the end.
char next_byte(const Watch& w) {
  char byte = 0;
  return read(w.words, &byte, 1) == 1 ? byte : 0;
}
// Lets it pass a step once the kernel says that so many filters are in place.
bool let_pass(const Watch& w, char step, int filters) {
  return cudal1::filters_of(w.child) >= w.filters + filters && write(w.answers, &step, 1) == 1;
}
int watch(const Watch& w, const cudal1::Namespaces& own) {
  const char* stage = "starting";
  bool files = false, sealed = false, forged = false;
  int status = 0;
  char said[2000];
  size_t length = 0;
  char byte = next_byte(w);
  if (byte == 'F') files = true, byte = next_byte(w);
  if (byte == 'L' && (sealed = let_pass(w, 'L', 1))) stage = "loading", byte = next_byte(w);
  if (sealed && byte == 'R' && !(forged = !let_pass(w, 'R', 2))) stage = "running", byte = next_byte(w);
  if (byte == 'L' || forged) kill(w.child, SIGKILL), byte = 0;
  for (; byte && length < sizeof said; byte = next_byte(w)) said[length++] = byte;
  if (byte) kill(w.child, SIGKILL);  // it says more than there is to say
  while (waitpid(w.child, &status, 0) < 0 && errno == EINTR) {
  }
  char line[300];
  int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0, code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  auto word = [](bool yes) { return yes ? "true" : "false"; };
  int n = snprintf(line, sizeof line,
                   "{\"stage\": \"%s\", \"signal\": %d, \"code\": %d, \"sealed\": %s, \"forged\": %s, \"no_files\": %s, "
                   "\"no_network\": %s, \"own_processes\": %s}\n",
                   stage, signal, code, word(sealed), word(forged), word(files), word(own.network),
                   word(own.processes));
  say(line, n);
  say(said, (int)length);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  Request r = read_request(argv[1]);
  cudal1::Namespaces own = cudal1::own_namespaces();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_IGN);
  int words[2], answers[2];
  if (pipe2(words, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0) return 2;
  pid_t child = fork();
  if (child < 0) return 2;
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(answers[0], 0);
    dup2(words[1], 1);
    for (int other : {2, words[0], words[1], answers[0], answers[1]}) close(other);
    open_and_run(r);
  }
  close(words[1]);
  close(answers[0]);
  return watch({child, words[0], answers[1], cudal1::filters_of(getpid())}, own);
}
