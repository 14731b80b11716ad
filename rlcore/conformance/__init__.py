"""Conformance checks: tests of the properties that every algorithm must have, built-in or written by a user.

    import pytest
    from flows.config.compose import compose
    from rlcore import conformance

    @pytest.mark.parametrize("check", conformance.CHECKS)
    def test_conformance(check):
        check(compose(["exp=mine", "algo.total_steps=400"])[0])

A check takes the config of an experiment, trains for a few iterations in this process, and raises AssertionError with a
description of the fault if the algorithm lacks the property. Use a config with small networks and short episodes, and
turn on all options that add state to the algorithm, so that this state is checked too.

`check_batched_env` checks a batched environment of your own (`rlcore.conformance.batched_env`).
`DISTRIBUTION_CHECKS` are further checks for an action distribution of your own (`rlcore.conformance.distributions`).
"""

from __future__ import annotations

from collections.abc import Callable

from rlcore.config.run import RunConfig
from rlcore.conformance.batched_env import check_batched_env as check_batched_env
from rlcore.conformance.distributions import DISTRIBUTION_CHECKS as DISTRIBUTION_CHECKS
from rlcore.conformance.distributions import entropy_matches_samples as entropy_matches_samples
from rlcore.conformance.distributions import first_ratio_is_one as first_ratio_is_one
from rlcore.conformance.distributions import probabilities_sum_to_one as probabilities_sum_to_one
from rlcore.conformance.distributions import samples_match_logprob as samples_match_logprob
from rlcore.conformance.one_process import a_loaded_policy_acts_alike as a_loaded_policy_acts_alike
from rlcore.conformance.one_process import a_player_elsewhere_acts_alike as a_player_elsewhere_acts_alike
from rlcore.conformance.one_process import acting_changes_nothing as acting_changes_nothing
from rlcore.conformance.one_process import an_episodes_start_forgets as an_episodes_start_forgets
from rlcore.conformance.one_process import (
    each_loss_reaches_only_its_parameters as each_loss_reaches_only_its_parameters,
)
from rlcore.conformance.one_process import greedy_is_deterministic as greedy_is_deterministic
from rlcore.conformance.one_process import interrupted_equals_uninterrupted as interrupted_equals_uninterrupted
from rlcore.conformance.one_process import no_global_generator_is_used as no_global_generator_is_used
from rlcore.conformance.one_process import parts_are_complete as parts_are_complete
from rlcore.conformance.one_process import same_seed_gives_the_same_bits as same_seed_gives_the_same_bits
from rlcore.conformance.one_process import state_survives_a_checkpoint as state_survives_a_checkpoint
from rlcore.conformance.several_ranks import (
    interrupted_ranks_equal_uninterrupted as interrupted_ranks_equal_uninterrupted,
)
from rlcore.conformance.several_ranks import ranks_stay_one as ranks_stay_one
from rlcore.conformance.several_ranks import two_ranks_learn_as_one as two_ranks_learn_as_one
from rlcore.conformance.stored_outputs import stored_agent_outputs_are_used as stored_agent_outputs_are_used
from rlcore.conformance.tracing import compiled_equals_eager as compiled_equals_eager
from rlcore.conformance.tracing import machine_code_equals_eager as machine_code_equals_eager

CHECKS: tuple[Callable[[RunConfig], None], ...] = (
    same_seed_gives_the_same_bits,
    interrupted_equals_uninterrupted,
    state_survives_a_checkpoint,
    parts_are_complete,
    each_loss_reaches_only_its_parameters,
    acting_changes_nothing,
    a_loaded_policy_acts_alike,
    a_player_elsewhere_acts_alike,
    greedy_is_deterministic,
    an_episodes_start_forgets,
    no_global_generator_is_used,
    stored_agent_outputs_are_used,
    compiled_equals_eager,
    machine_code_equals_eager,
    ranks_stay_one,
    two_ranks_learn_as_one,
    interrupted_ranks_equal_uninterrupted,
)
