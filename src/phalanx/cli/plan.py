"""`phalanx plan --replay FILE`: decide recorded snapshots again, and show where the answer differs; a bug report is a recording."""

from __future__ import annotations

import json
from pathlib import Path

import click

from phalanx.cli import control_plane
from phalanx.cli.admin import AdminError, call
from phalanx.cli.control_plane import state_option
from phalanx.model.plan import Plan
from phalanx.model.reasons import sentence
from phalanx.paths import Paths
from phalanx.scheduler.explain import explain, what_if_more
from phalanx.scheduler.plan import plan
from phalanx.scheduler.record import Recording, dump_plan, load


@click.command("plan")
@click.option("--replay", "path", type=click.Path(exists=True, path_type=Path), help="A file of recordings, one a line.")
@click.option("--save", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the control plane's last decisions there.")
@state_option
@click.option("--at", "number", type=int, help="Only the n-th recording, from 1; negative from the end.")
@click.option("--explain", "request_id", help="Explain this waiting request in full.")
@click.option("--what-if-more", "more", type=int, default=0, help="With --explain: the same with so many nodes more.")
@click.option("--json", "as_json", is_flag=True, help="The plans as JSON, one a line.")
def plan_command(
    path: Path | None, target: Path | None, state: Path, number: int | None, request_id: str | None, more: int, as_json: bool
) -> None:
    """Save the last decisions, or replay recorded ones. Exit code 1 when a plan differs from the recorded one."""
    if target is not None:
        _save(target, state)
    if path is None:
        if target is None:
            raise click.UsageError("say --replay FILE or --save FILE")
        return
    recordings = _read(path, number)
    differ = 0
    for place, recording in recordings:
        made = plan(recording.snapshot, recording.policy)
        same = dump_plan(made) == dump_plan(recording.plan)
        differ += not same
        if as_json:
            click.echo(dump_plan(made))
        elif request_id is None:
            _show(place, recording, made, same)
        else:
            _explain(recording, made, request_id, more)
    if not as_json:
        click.echo(f"{len(recordings)} decisions replayed, {differ} differ from the recording")
    if differ:
        raise SystemExit(1)


def _save(target: Path, state: Path) -> None:
    running = control_plane.find(Paths(state))
    if running is None:
        raise click.ClickException(f"nothing is up with state {state}: start it with `phalanx up`, or name another with --state")
    try:
        recordings = call(running.listen, running.config, "Plans")["recordings"]
    except AdminError as error:
        raise click.ClickException(str(error)) from error
    try:
        target.write_text(recordings)
    except OSError as error:
        raise click.ClickException(f"{target} can't be written: {error.strerror}") from error
    click.echo(f"{len(recordings.splitlines())} decisions written to {target}")


def _read(path: Path, number: int | None) -> list[tuple[int, Recording]]:
    found = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path} can't be read: {error}") from error
    for place, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append((place, load(line)))
            except (ValueError, TypeError, json.JSONDecodeError) as error:
                raise click.ClickException(f"{path}, line {place}: {error}") from error
    if number is None:
        return found
    try:
        return [found[number - 1 if number > 0 else number]]
    except IndexError:
        raise click.ClickException(f"{path} has {len(found)} recordings, there is no number {number}") from None


def _show(place: int, recording: Recording, made: Plan, same: bool) -> None:
    snapshot = recording.snapshot
    seen = f"{len(snapshot.nodes)} nodes, {len(snapshot.holds)} holds, {len(snapshot.pending)} pending"
    click.echo(f"#{place} at {snapshot.now_ms} ms: {seen}" + ("" if same else "   DIFFERS"))
    for start in made.starts:
        kind = f" as {start.gpu_count} {start.gpu_type}" if start.gpu_type else ""
        click.echo(f"  start {start.request_id} on {' '.join(start.node_ids)}{kind}")
    for reservation in made.reserve:
        click.echo(f"  promise {reservation.request_id}: {reservation.nodes} nodes of {reservation.fabric} at {reservation.start_ms} ms")
    for evict in made.evict:
        click.echo(f"  stop {evict.holder_id} for {evict.for_request}")
    for order in made.provision:
        click.echo(f"  order {order.count} of {order.offer_id} for {order.for_request}")
    for wait in made.waits:
        click.echo(f"  wait {wait.request_id}: {sentence(wait.reason, snapshot.now_ms)}")


def _explain(recording: Recording, made: Plan, request_id: str, more: int) -> None:
    try:
        click.echo("\n".join(explain(recording.snapshot, made, request_id).lines(recording.snapshot.now_ms)))
        if more:
            click.echo(f"with {more} nodes more:")
            found = what_if_more(recording.snapshot, recording.policy, request_id, more)
            click.echo("\n".join("  " + line for line in found.lines(recording.snapshot.now_ms)))
    except KeyError:
        waiting = ", ".join(r.request_id for r in recording.snapshot.pending[:10]) or "nothing"
        raise click.ClickException(f"{request_id} is not pending in this recording; pending: {waiting}") from None
    except ValueError as error:
        raise click.ClickException(str(error)) from error
