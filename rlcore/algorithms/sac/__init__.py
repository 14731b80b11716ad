"""SAC: config and learner, and the configs of DroQ, CrossQ and SimBa."""
