"""Steps along time, the rollout and its minibatches, reward scaling."""
