"""Mutants of A2C: one change of one named function each, with the check of `a2c_oracle` that detects it."""

from __future__ import annotations

from tests.golden.mutants import Mutant, given, returned, swap

BASE = ("check_update", "discrete", "base")
PARTS = ("check_update", "multi_discrete", "base")
NORMALIZED = ("check_update", "discrete", "normalize_advantages")
CLIPPED = ("check_update", "discrete", "small_max_grad_norm")
TENSORFLOW = ("check_update", "continuous", "rmsprop_tf")
MOMENTUM = ("check_update", "continuous", "rmsprop_tf_momentum")
PLAIN = ("check_update", "discrete", "sgd")
CHUNKS = (*BASE, 64)  # 200 samples in four parts
ROLLOUT = ("check_rollout",)
ANNEALING = ("check_annealing",)
PPO = ("check_is_ppo", "discrete", "sgd", "mean")
PPO_SUM = ("check_is_ppo", "continuous", "sgd", "sum")
PPO_NORMALIZED = (*PPO, True)

LOSS, UPDATE, STEP, IN_PARTS = (
    f"a2c.{name}" for name in ("Learner.loss", "Learner.update", "Learner.gradient_step", "A2CSamples.in_parts")
)
POLICY, ENTROPY, VALUE, ADVANTAGES = "a2c.policy_loss", "a2c.entropy_loss", "a2c.value_loss", "advantages"
MUTANTS = (
    # Policy gradient.
    Mutant("advantage of the wrong sign", POLICY, returned("-it"), BASE),
    Mutant(
        "value gradient through the advantage",
        LOSS,
        swap("batch.advantage", "batch.returns - value"),
        PPO,
    ),
    Mutant("returns in place of advantages", LOSS, swap("batch.advantage", "batch.returns"), BASE),
    Mutant("probability in place of its logarithm", LOSS, swap("A.logprob(B)", "A.logprob(B).exp()"), BASE),
    Mutant("log-probability of one sub-action", "Categoricals.logprob", returned("it / len(self.parts)"), PARTS),
    # Advantage normalization.
    Mutant("advantages not normalised", STEP, swap("A.normalize_advantages", "False"), NORMALIZED),
    Mutant("advantages always normalised", STEP, swap("A.normalize_advantages", "True"), BASE),
    Mutant("biased std", "standardize", swap("(A - 1).clamp(min=1)", "A"), NORMALIZED),
    Mutant(
        "reset rows in the normalisation",
        STEP,
        swap("standardize(A, B, C)", "standardize(A, B * 0 + 1, C)"),
        PPO_NORMALIZED,
    ),
    # Critic loss.
    Mutant("value loss of the wrong sign", VALUE, swap("value - returns", "value + returns"), BASE),
    Mutant("½ in the value loss", VALUE, returned("0.5 * it"), BASE),
    Mutant("vf_coef dropped", LOSS, swap("A.vf_coef", "1"), BASE),
    Mutant("value fitted to the advantage", LOSS, swap("batch.returns", "batch.advantage"), BASE),
    Mutant(
        "(N, 1) against (N,)",
        VALUE,
        swap("(value - A).square()", "(value.unsqueeze(-1) - A).square().mean(-1)"),
        BASE,
    ),
    # Entropy bonus.
    Mutant("entropy of the wrong sign", ENTROPY, returned("-it"), BASE),
    Mutant("ent_coef dropped", LOSS, swap('A["ent_coef"]', "0"), BASE),
    # Rows that count, and their weights.
    Mutant("reset rows counted", "transitions", swap("(~A).float()", "torch.ones_like(A).float()"), ROLLOUT),
    Mutant("reset rows counted in the loss", "reduce_loss", swap("loss.dot(weight)", "loss.sum()"), ROLLOUT),
    Mutant("sum in place of the mean", "Optimizer.take_step", swap('A == "mean"', 'A == "sum"'), PLAIN),
    Mutant("one part of the rollout only", IN_PARTS, returned("it[:1]"), CHUNKS),
    Mutant(
        "the last part's gradient alone",
        "Gradient.add_loss",
        swap("self._begin(weight)", "(self.clear(), self._begin(weight))"),
        CHUNKS,
    ),
    Mutant("means of the parts summed", "Gradient._begin", swap("before + weight", "weight"), CHUNKS),
    Mutant("gradients never forgotten", "Optimizer.drop", swap("self.gradient.clear()", "None"), BASE),
    # Clipping and the optimizer.
    Mutant("gradient not clipped", "clip_factors", swap("A.clamp(max=1.0)", "1.0"), CLIPPED),
    Mutant("gradient clipped elsewhere", "clip_factors", swap("max_norm / A", "1.0 / A"), CLIPPED),
    Mutant("ε outside the root", "_rmsprop", swap("(A + B).sqrt()", "A.sqrt() + B"), TENSORFLOW),
    Mutant("an average that begins at 0", "rules.slots", swap("rule.start.get(A, 0.0)", "0.0"), TENSORFLOW),
    Mutant("TensorFlow's ε in torch's RMSprop", "_rmsprop", swap('A == "rmsprop_tf"', "True"), BASE),
    Mutant("TensorFlow's average in torch's RMSprop", "rules.slots", swap("rule.start.get(A, 0.0)", "1.0"), BASE),
    Mutant("momentum dropped", "_rmsprop", swap('config["momentum"] * A', "0 * A"), MOMENTUM),
    Mutant("not centred", "_rmsprop", swap("variance - A", "variance"), MOMENTUM),
    # Advantages and time alignment.
    Mutant("one-step advantages", ADVANTAGES, given(gae_lambda="0.0"), ROLLOUT),
    Mutant("truncation as termination", ADVANTAGES, swap("A.terminated", "A.done"), ROLLOUT),
    Mutant("termination as truncation", ADVANTAGES, swap("gamma * B", "gamma * torch.ones_like(B)"), ROLLOUT),
    Mutant("no bootstrap after the last row", ADVANTAGES, given(last_value="0 * last_value"), ROLLOUT),
    Mutant("reward one row late", "transitions", swap("shift(A.reward, B)", "A.reward"), ROLLOUT),
    # Annealing.
    Mutant("learning rate not annealed", UPDATE, swap("A.set_lr(B)", "None"), ANNEALING),
    Mutant("entropy bonus not annealed", LOSS, swap('A["ent_coef"]', "self.config.ent_coef"), ANNEALING),
)
