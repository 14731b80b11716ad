"""Plan2Explore around Dreamer V1, V2 and V3, in two phases: exploration and fine-tuning."""
