"""Mathematics shared by several algorithm families: pure functions of tensors."""
