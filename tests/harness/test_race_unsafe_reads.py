"""An answer never tells what a crash could take back (design rule 6): a read waits for the changes it may have seen."""

from __future__ import annotations

import threading

from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet


def test_an_output_is_told_only_once_it_is_on_disk(control_plane: ControlPlane) -> None:
    fleet = FakeFleet(control_plane, 1, gpu_type="", gpu_count=0)
    fleet.start()
    caller = Caller(control_plane)
    function_id = caller.function()
    caller.result(caller.call(function_id))

    database = control_plane.server.database
    disk_may_go_on, outputs_on_disk, told = threading.Event(), threading.Event(), threading.Event()
    apply = database._apply

    def slow_apply(writes):  # type: ignore[no-untyped-def]
        is_output = any(records.name == "output" for records, _, _ in writes)
        if is_output:
            disk_may_go_on.wait(20)
        apply(writes)
        if is_output:
            outputs_on_disk.set()

    database._apply = slow_apply
    call_id = caller.call(function_id)

    def ask() -> None:
        caller.result(call_id)
        assert outputs_on_disk.is_set()
        told.set()

    asking = threading.Thread(target=ask)
    asking.start()
    assert not told.wait(0.5), "the result was told while its row was not written"
    disk_may_go_on.set()
    asking.join()
    assert told.is_set()
    fleet.stop()
