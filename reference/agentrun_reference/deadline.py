"""One statement time-out for several statements: owns statement_timeout while they run; must not touch rows.

PostgreSQL counts a time-out anew for each statement. An operation that waits in more than one would hold its locks
for as many time-outs (LOCK-7).
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from agentrun_reference.outcomes import OperationTimedOut

BEGIN: Final = text("""
    SELECT setting, clock_timestamp() + nullif(setting::interval, interval '0')
    FROM current_setting('statement_timeout') AS setting
""")

GO_ON: Final = text("""
    SELECT set_config('statement_timeout', left_ms::text, true)
    FROM ceil(1000 * extract(epoch FROM CAST(:ends_at AS timestamptz) - clock_timestamp())) AS left_ms
    WHERE left_ms > 0
""")

RESTORE: Final = text("SELECT set_config('statement_timeout', :setting, true)")


@dataclass(frozen=True)
class Deadline:
    """The end of the time that one statement would have; None where statement_timeout is 0, no limit."""

    connection: AsyncConnection
    setting: str
    ends_at: datetime | None

    @classmethod
    async def of_one_statement(cls, connection: AsyncConnection) -> "Deadline":
        """A deadline that counts from now, by the database's clock."""
        return cls(connection, *(await connection.execute(BEGIN)).one())

    async def go_on(self) -> None:
        """Leave the next statement no more than the time that is left. Raises OperationTimedOut when there is none.

        A statement that fails needs no `restore`: the rollback that has to follow brings the setting back.
        """
        if self.ends_at is None:
            return
        if await self.connection.scalar(GO_ON, {"ends_at": self.ends_at}) is None:
            await self.restore()
            raise OperationTimedOut(self.setting)

    async def restore(self) -> None:
        """Give the rest of the caller's transaction its own statement time-out back."""
        if self.ends_at is not None:
            await self.connection.execute(RESTORE, {"setting": self.setting})
