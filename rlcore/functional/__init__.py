"""Mathematics that several papers share: pure, tensors in, tensors out."""
