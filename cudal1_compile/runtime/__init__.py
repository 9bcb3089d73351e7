"""From a candidate to a call: source, build, load, launch; on a GPU or, for machines without one, on the host.

    build.build(program, candidate, target) -> Binary          NVRTC cubin, or g++ shared object
    launcher.load(program, candidate, binary) -> LoadedKernel   fn(*outs, *scratch, *ins, *sizes, stream)
    hostrun.run_isolated(...) -> HostRun                       unproven host code in a child process, and its cost

header/ is what device code may use; native/ is our own C and C++ (launcher, scheduler, checks, runner).
"""
