"""Plan2Explore around Dreamer V1, V2, V3 and V3.5, in two phases: exploration and fine-tuning."""
