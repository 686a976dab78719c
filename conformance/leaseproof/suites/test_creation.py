"""CREATE: the creation service refuses a subagent in a foreign place, and accepts each legal run."""

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from leaseproof.capabilities import Cap
from leaseproof.checks import claim, expect, expect_equal, refute
from leaseproof.system import Claimed, Created, NewRun, Refused
from leaseproof.world.facts import Run
from leaseproof.world.world import World

USER = "user-1"
STRANGER = "user-2"


@dataclass(frozen=True)
class Family:
    """A running creator, and the subagent that it may start: `legal` is right in every respect."""

    creator: Run
    relation: str
    child: str
    legal: NewRun


async def _family(world: World, creator: Run | None = None) -> Family:
    """A running chat of the user's (or the given creator), with a relation to a conversation for its subagent."""
    parent = creator or await world.run("running", uid=USER)
    uid = parent.uid or USER
    child = await world.plant.conversation(uid)
    relation = await world.plant.relation(parent.conversation_id or "", child, uid)
    legal = NewRun(
        "subagent",
        uid=uid,
        conversation_id=child,
        scope_conversation_id=parent.scope_conversation_id,
        created_by_run_id=parent.id,
        owner_token=parent.owner_token,
        subagent_relation_id=relation,
    )
    return Family(parent, relation, child, legal)


async def _refused(world: World, new: NewRun, because: str) -> None:
    """The service refuses this run, and no row of any table is written or changed."""
    before = await world.digest()
    answer = await world.actor("creator").create_run(new)
    expect(isinstance(answer, Refused), because, f"{new} was answered {answer!r}")
    expect_equal(await world.digest(), before, f"{because}_row", "rows after a refused creation")


async def _accepted(world: World, new: NewRun) -> Run:
    """The service creates this run, pending and owned by nobody; its row."""
    answer = await world.actor("creator").create_run(new)
    if not isinstance(answer, Created):
        refute("legal_refused", f"{new} was answered {answer!r}")
    row = (await world.snapshot()).runs.get(answer.run_id)
    if row is None:
        refute("no_row", f"{new} was answered {answer!r}, and there is no such run")
    expect_equal(row.status, "pending", "not_pending", "the status of the new run")
    expect_equal((row.owner_token, row.lease_expires_at), (None, None), "born_owned", "owner and lease of the new run")
    seen = (row.run_type, row.uid, row.created_by_run_id, row.subagent_relation_id)
    asked = (new.run_type, new.uid, new.created_by_run_id, new.subagent_relation_id)
    expect_equal(seen, asked, "wrong_row", "type, user, creator and relation of the new run")
    return row


async def _only_legal_one_is_accepted(world: World, family: Family) -> None:
    """Beside what was refused, the legal run is created, in the conversation and scope that were asked for."""
    row = await _accepted(world, family.legal)
    seen = (row.conversation_id, row.scope_conversation_id)
    asked = (family.legal.conversation_id, family.legal.scope_conversation_id)
    expect_equal(seen, asked, "wrong_row", "conversation and scope of the new run")


@claim("CREATE-1")
async def test_subagent_for_another_user_is_refused(world: World) -> None:
    """The user asked for is not the creator's; or the relation, or the child conversation, is another user's."""
    family = await _family(world)
    parent = family.creator.conversation_id or ""
    await _refused(world, replace(family.legal, uid=STRANGER), "foreign_user")
    foreign_relation = await world.plant.relation(parent, family.child, STRANGER)
    await _refused(world, replace(family.legal, subagent_relation_id=foreign_relation), "relation_of_another_user")
    child = await world.plant.conversation(STRANGER)
    relation = await world.plant.relation(parent, child, USER)
    elsewhere = replace(family.legal, conversation_id=child, subagent_relation_id=relation)
    await _refused(world, elsewhere, "conversation_of_another_user")
    astray = await world.run("running", uid=USER, conversation_id=await world.plant.conversation(STRANGER))
    below_it = (await _family(world, astray)).legal
    await _refused(world, below_it, "parent_conversation_of_another_user")
    await _only_legal_one_is_accepted(world, family)


@claim("CREATE-1")
async def test_subagent_of_another_creator_is_refused(world: World) -> None:
    """There is no such creator; none is named; or the run that holds the token is not the one that is named."""
    family, other = await _family(world), await _family(world)
    await _refused(world, replace(family.legal, created_by_run_id="no-such-run"), "unknown_creator")
    await _refused(world, replace(family.legal, created_by_run_id=None), "no_creator")
    await _refused(world, replace(family.legal, created_by_run_id=other.creator.id), "foreign_creator")
    await _only_legal_one_is_accepted(world, family)


@claim("CREATE-1")
async def test_subagent_by_another_than_its_creators_owner_is_refused(world: World) -> None:
    """The token is nobody's, or that of a run in the same place: two subagents work side by side over one relation."""
    top = await _family(world)
    place: dict[str, Any] = {"conversation_id": top.child, "subagent_relation_id": top.relation}
    one, beside = [await world.run("running", creator=top.creator, **place) for _ in range(2)]
    family = await _family(world, one)
    await _refused(world, replace(family.legal, owner_token="nobodys"), "token_of_nobody")
    await _refused(world, replace(family.legal, owner_token=beside.owner_token), "token_of_another_run")
    await _refused(world, replace(family.legal, created_by_run_id=beside.id), "creator_of_another_owner")
    await _only_legal_one_is_accepted(world, family)
    await _only_legal_one_is_accepted(
        world,
        replace(family, legal=replace(family.legal, created_by_run_id=beside.id, owner_token=beside.owner_token)),
    )


@claim("CREATE-1")
async def test_subagent_without_its_relation_is_refused(world: World) -> None:
    """There is no such relation, or none is named."""
    family = await _family(world)
    await _refused(world, replace(family.legal, subagent_relation_id="no-such-relation"), "unknown_relation")
    await _refused(world, replace(family.legal, subagent_relation_id=None), "no_relation")
    await _only_legal_one_is_accepted(world, family)


@claim("CREATE-1")
async def test_subagent_of_another_parent_conversation_is_refused(world: World) -> None:
    """The relation leads to the child conversation, but from another conversation of the user's than the creator's."""
    family = await _family(world)
    stray = await world.plant.relation(await world.plant.conversation(USER), family.child, USER)
    await _refused(world, replace(family.legal, subagent_relation_id=stray), "foreign_parent_conversation")
    turned = await world.plant.relation(family.child, family.creator.conversation_id or "", USER)
    await _refused(world, replace(family.legal, subagent_relation_id=turned), "relation_turned_round")
    await _only_legal_one_is_accepted(world, family)


@claim("CREATE-1")
async def test_subagent_in_another_child_conversation_is_refused(world: World) -> None:
    """The conversation asked for is not the one to which the relation leads."""
    family = await _family(world)
    places = {
        "foreign_child_conversation": await world.plant.conversation(USER),
        "creators_conversation": family.creator.conversation_id,
        "unknown_conversation": "no-such-conversation",
        "no_conversation": None,
    }
    for because, conversation in places.items():
        await _refused(world, replace(family.legal, conversation_id=conversation), because)
    await _only_legal_one_is_accepted(world, family)


@claim("CREATE-1")
async def test_subagent_in_another_scope_than_its_creators_is_refused(world: World) -> None:
    """The scope is inherited, at any depth: neither the child's own conversation nor another one will do."""
    top = await _family(world)
    middle = await world.run("running", creator=top.creator)
    below = await _family(world, middle)
    for family in (top, below):
        scopes = {
            "scope_of_its_own": family.child,
            "scope_of_no_use": await world.plant.conversation(USER),
            "scope_of_another_user": await world.plant.conversation(STRANGER),
            "no_scope": None,
        }
        for because, scope in scopes.items():
            await _refused(world, replace(family.legal, scope_conversation_id=scope), because)
    creators_own = replace(below.legal, scope_conversation_id=middle.conversation_id)
    await _refused(world, creators_own, "scope_of_the_creators_conversation")
    await _only_legal_one_is_accepted(world, below)
    await _only_legal_one_is_accepted(world, top)


@claim("CREATE-1")
async def test_subagent_that_is_wrong_in_two_ways_is_refused(world: World) -> None:
    """Two facts are broken at once, so that they may seem to fit each other."""
    family, other = await _family(world), await _family(world, await world.run("running", uid=STRANGER))
    parent = family.creator.conversation_id or ""
    wrong: dict[str, Any] = {
        "uid": STRANGER,
        "created_by_run_id": other.creator.id,
        "subagent_relation_id": await world.plant.relation(parent, other.child, STRANGER),
        "conversation_id": other.child,
        "scope_conversation_id": other.creator.scope_conversation_id,
    }
    for first, second in combinations(wrong, 2):
        twice = replace(family.legal, **{first: wrong[first], second: wrong[second]})
        await _refused(world, twice, "wrong_in_two_ways")
    await _only_legal_one_is_accepted(world, family)


@claim("CREATE-3")
async def test_legal_chat_is_created_and_can_be_claimed(world: World) -> None:
    """A chat in a conversation of the user's, whose runtime is that conversation's own."""
    conversation = await world.plant.conversation(USER)
    row = await _accepted(world, NewRun("chat", uid=USER, conversation_id=conversation))
    places = (row.conversation_id, row.scope_conversation_id)
    expect_equal(places, (conversation, conversation), "wrong_row", "conversation and scope of the new run")
    await _can_be_claimed(world, row)


@claim("CREATE-3")
async def test_legal_resume_is_created_and_can_be_claimed(world: World) -> None:
    """An interrupted chat goes on in a run of its own, in the same conversation."""
    interrupted = await world.run("interrupted", uid=USER)
    row = await _accepted(world, NewRun("resume", uid=USER, created_by_run_id=interrupted.id))
    places = (row.conversation_id, row.scope_conversation_id)
    conversation = interrupted.conversation_id
    expect_equal(places, (conversation, conversation), "wrong_row", "conversation and scope of the new run")
    expect_equal((await world.snapshot()).statuses()[interrupted.id], "interrupted", "creator_changed", "the creator")
    await _can_be_claimed(world, row)


@claim("CREATE-3")
async def test_resume_is_continued_and_starts_subagents_as_a_chat(world: World) -> None:
    """An interrupted resume goes on in another resume; a running resume starts a subagent."""
    chat = await world.run("interrupted", uid=USER)
    stopped = await world.run("interrupted", creator=chat, run_type="resume")
    row = await _accepted(world, NewRun("resume", uid=USER, created_by_run_id=stopped.id))
    places = (row.conversation_id, row.scope_conversation_id)
    wanted = (chat.conversation_id, chat.conversation_id)
    expect_equal(places, wanted, "wrong_row", "conversation and scope of a resume's resume")
    running = await _can_be_claimed(world, row)
    if running.owner_token is None:
        running = await world.run("running", creator=stopped, run_type="resume")
    family = await _family(world, running)
    await _only_legal_one_is_accepted(world, family)


@claim("CREATE-3")
async def test_legal_subagents_are_created_and_can_be_claimed(world: World) -> None:
    """A running run starts two subagents over one relation; one of them, once it runs, starts one of its own."""
    family = await _family(world)
    first, second = await _accepted(world, family.legal), await _accepted(world, family.legal)
    expect(first.id != second.id, "same_run", f"two creations gave {first.id}")
    await _can_be_claimed(world, second)
    running = await _can_be_claimed(world, first)
    below = await _family(world, running)
    row = await _accepted(world, below.legal)
    places = (row.conversation_id, row.scope_conversation_id)
    wanted = (below.child, family.creator.scope_conversation_id)
    expect_equal(places, wanted, "wrong_row", "conversation and scope of a subagent's subagent")
    await _can_be_claimed(world, row)


async def _can_be_claimed(world: World, run: Run) -> Run:
    """A worker takes the new run as any other; its row then."""
    if Cap.lease not in world.system.capabilities:
        return run
    answer = await world.actor("worker").mark_running(run.id, owner_token=f"{run.id}-owner")
    expect(isinstance(answer, Claimed), "not_claimable", f"the claim of {run.id} was answered {answer!r}")
    row = (await world.snapshot()).runs[run.id]
    expect_equal((row.status, row.owner_token), ("running", f"{run.id}-owner"), "not_claimable", "status and owner")
    return row
