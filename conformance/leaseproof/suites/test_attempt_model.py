"""ATTEMPT by random histories, each claim by its own.

A history that goes wrong breaks the claim of the step in which it does, and no other. So there is a check, with other
histories, for each claim, which judges the steps that its claim is about; ATTEMPT-8 and 16 are judged after every
step. They stay out of the grid of controls for their length; the checks of `test_attempts` are the quick ones.
"""

from leaseproof.checks import claim
from leaseproof.servers.cluster import Cluster
from leaseproof.suites.attempt_histories import Exploration
from leaseproof.system import System


@claim("ATTEMPT-1", slow=True)
async def test_random_histories_open_the_next_attempt(system_under_test: System, cluster: Cluster) -> None:
    """Claims that change the owner, and claims that are refused."""
    await Exploration(system_under_test, cluster, "ATTEMPT-1").explore()


@claim("ATTEMPT-2", slow=True)
async def test_random_histories_close_what_a_claim_finds_open(system_under_test: System, cluster: Cluster) -> None:
    """Takeovers, and claims of pending runs with an attempt left open."""
    await Exploration(system_under_test, cluster, "ATTEMPT-2").explore()


@claim("ATTEMPT-3", slow=True)
async def test_random_histories_refresh_a_live_owner_and_refuse_spent_tokens(
    system_under_test: System, cluster: Cluster
) -> None:
    """Claims by the live owner, and by tokens that had their attempt."""
    await Exploration(system_under_test, cluster, "ATTEMPT-3").explore()


@claim("ATTEMPT-4", slow=True)
async def test_random_histories_renew_run_and_attempt_together(system_under_test: System, cluster: Cluster) -> None:
    """Renewals, by the owner and by anyone else."""
    await Exploration(system_under_test, cluster, "ATTEMPT-4").explore()


@claim("ATTEMPT-5", slow=True)
async def test_random_histories_keep_released_tries(system_under_test: System, cluster: Cluster) -> None:
    """Releases, by the owner and by anyone else."""
    await Exploration(system_under_test, cluster, "ATTEMPT-5").explore()


@claim("ATTEMPT-6", slow=True)
async def test_random_histories_end_attempts_with_their_runs(system_under_test: System, cluster: Cluster) -> None:
    """Ends, by the owner and by anyone else."""
    await Exploration(system_under_test, cluster, "ATTEMPT-6").explore()


@claim("ATTEMPT-7", slow=True)
async def test_random_histories_are_swept(system_under_test: System, cluster: Cluster) -> None:
    """Sweeps at any point."""
    await Exploration(system_under_test, cluster, "ATTEMPT-7").explore()


@claim("ATTEMPT-8", slow=True)
async def test_random_histories_never_rewrite_a_closed_attempt(system_under_test: System, cluster: Cluster) -> None:
    """Every step: closed attempts stay as they are."""
    await Exploration(system_under_test, cluster, "ATTEMPT-8").explore()


@claim("ATTEMPT-16", slow=True)
async def test_random_histories_explain_their_runs(system_under_test: System, cluster: Cluster) -> None:
    """Every step: the attempts account for each run's status."""
    await Exploration(system_under_test, cluster, "ATTEMPT-16").explore()
