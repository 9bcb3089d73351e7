"""Processes that can be killed, with what they may not do; the lock of a device; the protocol with a worker."""
