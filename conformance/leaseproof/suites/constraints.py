"""The CHECK constraints that judge a run's shape, as the catalogue has them. Owns reading them; must not write."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from psycopg import sql

from leaseproof.suites.shapes import SHAPE_FIELDS
from leaseproof.system import RunTable
from leaseproof.world.sessions import Session

CHECKS: LiteralString = """
    SELECT c.conname, pg_get_expr(c.conbin, c.conrelid) AS expression, array_agg(a.attname::text) AS columns
    FROM pg_constraint AS c JOIN pg_attribute AS a ON a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)
    WHERE c.conrelid = %(table)s::regclass AND c.contype = 'c'
    GROUP BY c.oid, c.conname, c.conbin, c.conrelid ORDER BY c.conname
"""

TELLING: Final = frozenset(SHAPE_FIELDS) - {"status", "conversation_id"}
"""A constraint that reads one of these judges the shape, and not some other fact of a run."""


@dataclass(frozen=True)
class ShapeConstraint:
    """One constraint: its condition, and the fields whose columns it reads."""

    table: RunTable
    name: str
    expression: str
    fields: frozenset[str]

    async def unknown_for(self, session: Session, runs: Sequence[str]) -> list[str]:
        """Those of the runs for which the condition is neither true nor false."""
        query = sql.SQL("SELECT {id} AS id FROM {table} WHERE ({expression}) IS NULL AND {id} = ANY (%(runs)s)").format(
            id=sql.Identifier(self.table.columns["id"]),
            table=sql.Identifier(*self.table.name.split(".")),
            expression=sql.SQL(self.expression.replace("{", "{{").replace("}", "}}")),  # the catalogue's own text
        )
        return [row["id"] for row in await session.fetch(query, {"runs": list(runs)})]


async def shape_constraints(session: Session, table: RunTable) -> list[ShapeConstraint]:
    """Those of the table's CHECK constraints that judge the shape."""
    names = {column: field for field, column in table.columns.items()}
    found = [
        ShapeConstraint(
            table, row["conname"], row["expression"], frozenset(names[c] for c in row["columns"] if c in names)
        )
        for row in await session.fetch(CHECKS, {"table": table.name})
    ]
    return [constraint for constraint in found if constraint.fields & TELLING]
