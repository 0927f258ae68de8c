"""What an earlier version left goes on under this one. Its schema is made from today's by taking away what came since."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from phalanx.server.server import database_url
from phalanx.store.engine import url_of
from tests.harness.callers import Caller
from tests.harness.conftest import OVER_BOTH_DATABASES
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet
from tests.harness.schemas import SCHEMAS
from tests.harness.waiting import until

KEPT = {"schema_version"}


def take_back(plane: ControlPlane, schema: dict[str, str]) -> list[str]:
    """Drop every table and column that this schema did not have. Returns what it was."""
    engine = sa.create_engine(url_of(database_url(plane.config, plane.paths)))
    dropped = []
    with engine.begin() as connection:
        for table in sa.inspect(connection).get_table_names():
            if table not in schema and table not in KEPT:
                connection.execute(sa.text(f'DROP TABLE "{table}"'))
                dropped.append(table)
        for table, columns in schema.items():
            for column in sa.inspect(connection).get_columns(table):
                if column["name"] not in columns.split():
                    connection.execute(sa.text(f'ALTER TABLE "{table}" DROP COLUMN "{column["name"]}"'))
                    dropped.append(f"{table}.{column['name']}")
    engine.dispose()
    return dropped


@OVER_BOTH_DATABASES
@pytest.mark.parametrize("commit", SCHEMAS)
def test_the_state_of_an_earlier_version_goes_on(control_plane: ControlPlane, commit: str) -> None:
    fleet = FakeFleet(control_plane, 2)
    fleet.start()
    caller = Caller(control_plane)
    function_id = caller.function(size=2, gpu="H100:8")
    done = caller.call(function_id)
    assert caller.result(done) == 0
    fleet.stop()
    waiting = caller.call(function_id)
    control_plane.stop()
    assert "input.excluded_nodes" in take_back(control_plane, SCHEMAS[commit])

    control_plane.start()
    fleet = FakeFleet(control_plane, 2)     # its containers are gone
    fleet.start()
    until(lambda: all(gang.assignment.assignment != 1 for gang in control_plane.server.gangs.running.values()))
    control_plane.advance(40_000)           # over the time for which a node that lost a container is left out
    assert caller.result(done) == 0 and caller.result(waiting) == 0
    fleet.stop()
