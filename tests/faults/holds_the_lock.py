"""A program that prints "ready" and then blocks in C code while holding the GIL."""

import ctypes

if __name__ == "__main__":
    print("ready", flush=True)
    ctypes.PyDLL(None).sleep(600)
