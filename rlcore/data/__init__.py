"""Steps along time, minibatches and buffers."""
