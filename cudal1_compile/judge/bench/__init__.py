"""Where candidates are judged: a device with its worker processes, or child processes on the host."""
