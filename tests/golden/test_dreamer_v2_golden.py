"""Dreamer V2 against SheepRL's own losses and gradients; and each wrong version fails the check named beside it."""

from __future__ import annotations

import pytest

from rlcore.algorithms.dreamer.dreamer_v2 import learner as dreamer_v2
from tests.golden import dreamer_v2_oracle
from tests.golden.dreamer_v2_mutants import MUTANTS
from tests.golden.mutants import Mutant, changed
from tests.soaking import always, heavy

pytestmark = heavy


@always
@pytest.mark.parametrize("variant", dreamer_v2_oracle.VARIANTS)
def test_losses_and_gradients_are_sheeprls(variant: str) -> None:
    dreamer_v2_oracle.check_losses(dreamer_v2, variant)


def test_the_slow_critic_is_a_copy_of_every_hundredth_step() -> None:
    dreamer_v2_oracle.check_copies(dreamer_v2)


def test_weights_decay_as_sheeprls() -> None:
    dreamer_v2_oracle.check_decay(dreamer_v2)


def test_an_update_logs_sheeprls_numbers_and_the_norms_of_its_gradients() -> None:
    dreamer_v2_oracle.check_update(dreamer_v2)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_is_noticed(mutant: Mutant) -> None:
    name, *arguments = mutant.check
    with changed(mutant.function, mutant.change), pytest.raises(AssertionError):
        getattr(dreamer_v2_oracle, name)(dreamer_v2, *arguments)
