"""Defects of CREATE: checks that the creation service leaves out, and legal runs that it refuses."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

from sqlalchemy import Table, select

from agentrun_defects._control import defect
from agentrun_reference.outcomes import CreationRefused
from agentrun_reference.repository import HeldRun
from agentrun_reference.schema import CONVERSATIONS, RELATIONS, RUNS
from agentrun_reference.service import AgentRunService
from agentrun_reference.shape import CHAT, COMPLETED, RESUME

USER: Final = "test_subagent_for_another_user_is_refused"
CREATOR: Final = "test_subagent_of_another_creator_is_refused"
OWNER: Final = "test_subagent_by_another_than_its_creators_owner_is_refused"
RELATION: Final = "test_subagent_without_its_relation_is_refused"
PARENT: Final = "test_subagent_of_another_parent_conversation_is_refused"
CHILD: Final = "test_subagent_in_another_child_conversation_is_refused"
SCOPE: Final = "test_subagent_in_another_scope_than_its_creators_is_refused"
RESUMES: Final = "test_legal_resume_is_created_and_can_be_claimed"
OF_RESUMES: Final = "test_resume_is_continued_and_starts_subagents_as_a_chat"
SUBAGENTS: Final = "test_legal_subagents_are_created_and_can_be_claimed"


@defect("takes_the_creators_user", refutes="CREATE-1", caught_by=USER, because="foreign_user")
class TakesTheCreatorsUser(AgentRunService):
    """Creates the subagent for the creator's user, whoever asks."""

    async def create_subagent(self, **new: Any) -> str:
        creator = await self.repository.run(new["created_by_run_id"])
        return await super().create_subagent(**{**new, "uid": new["uid"] if creator is None else creator.uid})


@defect("takes_anybodys_relation", refutes="CREATE-1", caught_by=USER, because="relation_of_another_user")
class TakesAnybodysRelation(AgentRunService):
    """Looks where a relation leads, not whose it is."""

    async def _check_relation(self, relation_id: str, uid: str, creator: HeldRun, conversation_id: str) -> None:
        self._uid = uid
        await super()._check_relation(relation_id, uid, creator, conversation_id)

    async def _read(self, table: Table, row_id: str | None) -> Any:
        row = await super()._read(table, row_id)
        return row if row is None or table is not RELATIONS else SimpleNamespace(**{**row._mapping, "uid": self._uid})


@defect("takes_anybodys_conversation", refutes="CREATE-1", caught_by=USER, because="conversation_of_another_user")
class TakesAnybodysConversation(AgentRunService):
    """Looks whether a conversation exists, not whose it is."""

    async def _check_conversation(self, conversation_id: str | None, uid: str) -> None:
        conversation = await self._read(CONVERSATIONS, conversation_id)
        await super()._check_conversation(conversation_id, uid if conversation is None else conversation.uid)


@defect("leaves_an_unknown_creator_to_the_key", refutes="CREATE-1", caught_by=CREATOR, because="23503")
class LeavesAnUnknownCreatorToTheKey(AgentRunService):
    """Does not look for the creator: the foreign key will refuse it, with an error that tells the caller nothing."""

    async def create_subagent(self, **new: Any) -> str:
        if await self.repository.run(new["created_by_run_id"]) is None:
            values = {name: value for name, value in new.items() if name != "owner_token"}
            return await self._insert(run_type="subagent", **values)
        return await super().create_subagent(**new)


@defect("takes_any_relation_of_its_creator", refutes="CREATE-1", caught_by=RELATION, because="no_relation")
class TakesAnyRelationOfItsCreator(AgentRunService):
    """Where none is named, looks for a relation that fits, and writes the run with it."""

    async def create_subagent(self, **new: Any) -> str:
        fits = select(RELATIONS.c.id).where(RELATIONS.c.child_conversation_id == new["conversation_id"])
        if not new["subagent_relation_id"]:
            new["subagent_relation_id"] = (await self.connection.scalars(fits)).first()
        return await super().create_subagent(**new)


@defect("takes_a_relation_from_anywhere", refutes="CREATE-1", caught_by=PARENT, because="foreign_parent_conversation")
class TakesARelationFromAnywhere(AgentRunService):
    """Does not ask whether the relation starts at the creator's conversation."""

    async def _check_relation(self, relation_id: str, uid: str, creator: HeldRun, conversation_id: str) -> None:
        relation = await self._read(RELATIONS, relation_id)
        if relation is not None:
            creator = replace(creator, conversation_id=relation.parent_conversation_id)
        await super()._check_relation(relation_id, uid, creator, conversation_id)


@defect("puts_the_subagent_anywhere", refutes="CREATE-1", caught_by=CHILD, because="foreign_child_conversation")
class PutsTheSubagentAnywhere(AgentRunService):
    """Does not ask whether the relation leads to the conversation of the subagent."""

    async def _check_relation(self, relation_id: str, uid: str, creator: HeldRun, conversation_id: str) -> None:
        relation = await self._read(RELATIONS, relation_id)
        leads_to = conversation_id if relation is None else relation.child_conversation_id
        await super()._check_relation(relation_id, uid, creator, leads_to)


@defect("gives_the_scope_that_is_asked_for", refutes="CREATE-1", caught_by=SCOPE, because="scope_of_its_own")
class GivesTheScopeThatIsAskedFor(AgentRunService):
    """Lets the caller choose the scope of a subagent."""

    async def create_subagent(self, **new: Any) -> str:
        self._asked = new["scope_conversation_id"]
        creator = await self.repository.run(new["created_by_run_id"])
        inherited = self._asked if creator is None else creator.scope_conversation_id
        return await super().create_subagent(**{**new, "scope_conversation_id": inherited})

    async def _insert(self, **values: str | None) -> str:
        asked = getattr(self, "_asked", values["scope_conversation_id"])
        return await super()._insert(**{**values, "scope_conversation_id": asked})


@defect(
    "inherits_the_creators_conversation",
    refutes="CREATE-1",
    caught_by=SCOPE,
    because="scope_of_the_creators_conversation",
    also=["CREATE-3"],
)
class InheritsTheCreatorsConversation(AgentRunService):
    """Takes the creator's conversation for its scope, which is so for a chat and not for a subagent."""

    async def _lock_creator(self, run_id: str, uid: str) -> HeldRun:
        creator = await super()._lock_creator(run_id, uid)
        return replace(creator, scope_conversation_id=creator.conversation_id)


@defect("one_subagent_a_relation", refutes="CREATE-3", caught_by=SUBAGENTS, because="legal_refused")
class OneSubagentARelation(AgentRunService):
    """Refuses a second run over a relation, though the first has nothing against it."""

    async def _check_relation(self, relation_id: str, uid: str, creator: HeldRun, conversation_id: str) -> None:
        await super()._check_relation(relation_id, uid, creator, conversation_id)
        used = select(RUNS.c.id).where(RUNS.c.subagent_relation_id == relation_id)
        if (await self.connection.scalars(used)).first() is not None:
            raise CreationRefused("relation", f"subagent relation {relation_id} is in use")


@defect("resumes_completed_runs_alone", refutes="CREATE-3", caught_by=RESUMES, because="legal_refused")
class ResumesCompletedRunsAlone(AgentRunService):
    """Lets only a completed run be continued, and so never one that waits for a person."""

    async def create_resume(self, **new: Any) -> str:
        creator = await self.repository.run(new["created_by_run_id"])
        if creator is None or creator.status != COMPLETED:
            raise CreationRefused("creator_status", "only a completed run can be continued")
        return await super().create_resume(**new)


@defect(
    "takes_any_parent_conversation", refutes="CREATE-1", caught_by=USER, because="parent_conversation_of_another_user"
)
class TakesAnyParentConversation(AgentRunService):
    """Does not ask whose the conversation is in which the creator works."""

    async def _check_relation(self, relation_id: str, uid: str, creator: HeldRun, conversation_id: str) -> None:
        self._parent = creator.conversation_id
        await super()._check_relation(relation_id, uid, creator, conversation_id)

    async def _check_conversation(self, conversation_id: str | None, uid: str) -> None:
        if conversation_id != getattr(self, "_parent", None):
            await super()._check_conversation(conversation_id, uid)


@defect("leaves_no_scope_to_the_constraint", refutes="CREATE-1", caught_by=SCOPE, because="23514")
class LeavesNoScopeToTheConstraint(AgentRunService):
    """Checks a scope that is given; one that is not is written as it is, and PostgreSQL refuses the row."""

    async def create_subagent(self, **new: Any) -> str:
        creator = await self.repository.run(new["created_by_run_id"])
        self._no_scope = creator is not None and not new["scope_conversation_id"]
        if creator is not None and self._no_scope:
            new["scope_conversation_id"] = creator.scope_conversation_id
        return await super().create_subagent(**new)

    async def _insert(self, **values: str | None) -> str:
        if getattr(self, "_no_scope", False):
            values["scope_conversation_id"] = None
        return await super()._insert(**values)


@defect("takes_any_running_creator", refutes="CREATE-1", caught_by=OWNER, because="token_of_nobody")
class TakesAnyRunningCreator(AgentRunService):
    """Does not ask whether the caller's token is the creator's: whoever knows its id may start subagents of it."""

    async def create_subagent(self, **new: Any) -> str:
        creator = await self.repository.run(new["created_by_run_id"])
        token = None if creator is None else creator.owner_token
        return await super().create_subagent(**{**new, "owner_token": token or new["owner_token"]})


@defect("lets_resumes_start_no_subagents", refutes="CREATE-3", caught_by=OF_RESUMES, because="legal_refused")
class LetsResumesStartNoSubagents(AgentRunService):
    """Takes a resume for a run that only ends what another began."""

    async def create_subagent(self, **new: Any) -> str:
        creator = await self.repository.run(new["created_by_run_id"])
        if creator is not None and creator.run_type == RESUME:
            raise CreationRefused("creator", f"run {creator.id} is a resume")
        return await super().create_subagent(**new)


@defect("resumes_chats_alone", refutes="CREATE-3", caught_by=OF_RESUMES, because="legal_refused")
class ResumesChatsAlone(AgentRunService):
    """Lets a run be continued once: a resume that stops for a person again can't go on."""

    async def create_resume(self, **new: Any) -> str:
        creator = await self.repository.run(new["created_by_run_id"])
        if creator is not None and creator.run_type != CHAT:
            raise CreationRefused("creator", f"run {creator.id} is no chat")
        return await super().create_resume(**new)
