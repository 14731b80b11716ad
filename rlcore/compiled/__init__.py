"""Compilation of functions on tensors: machine code on the CPU, CUDA graphs on a GPU."""
