"""Functions of tensors as machine code: the one door to the compiler."""
