// seal.h: what a process gives up before it opens an unproven object, and before that object's code runs.
//
//   own_namespaces -> fork -> refuse_files -> seal_for_loading -> dlopen -> seal_for_running -> the kernel
//
// Each filter is stacked on those before it and cannot be taken off. A forbidden call ends the process by SIGSYS.
#pragma once
#include <sys/types.h>

namespace cudal1 {
struct Namespaces {
  bool processes, network;  // a child sees no process but its own; it has no network
};
Namespaces own_namespaces();             // of the children of this process, as far as the kernel allows
bool refuse_files(const char* readable);  // by Landlock, where there is one: opens nothing but this file, connects nowhere
bool seal_for_loading();                 // what dlopen needs: opening to read, mapping (never writable and executable)
bool seal_for_running();                 // read(0), write(1), exit, sigreturn
int filters_of(pid_t process);           // how many filters the kernel says it has; -1: not to be known
}  // namespace cudal1
