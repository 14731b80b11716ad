"""A program that says so and then holds the interpreter lock in C for ever."""

import ctypes

if __name__ == "__main__":
    print("ready", flush=True)
    ctypes.PyDLL(None).sleep(600)
