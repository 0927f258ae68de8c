"""phalanx login: a profile in the modal client's own configuration file."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import click

from phalanx.cli.admin import reachable
from phalanx.cli.control_plane import Running, state_option
from phalanx.config import Config
from phalanx.paths import Paths

OURS = ("server_url", "token_id", "token_secret", "active")


@click.command()
@state_option
@click.option("--profile", default="phalanx", show_default=True, help="The profile's name.")
@click.option("--activate/--no-activate", default=None, help="Whether the client uses it from now on; asked where neither is given.")
def login(state: Path, profile: str, activate: bool | None) -> None:
    """Point the modal client at the control plane, in ~/.modal.toml (or $MODAL_CONFIG_PATH).

    Other profiles stay. The active one changes only if you say so.
    """
    paths = Paths(state)
    if not paths.config.exists():
        raise click.ClickException(f"there is no control plane in {state} to log in to: `phalanx up` makes one")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", profile):
        raise click.ClickException(f"{profile!r} is no name for a profile: use letters, digits, - and _")
    config = Config.load(paths.config)
    running = Running(paths, config, reachable(config.listen))
    file = Path(os.environ.get("MODAL_CONFIG_PATH") or Path.home() / ".modal.toml")
    text = file.read_text() if file.exists() else ""
    profiles = _parse(file, text)
    now_active = active_profile(profiles)
    if activate is None:
        activate = now_active in (None, profile) or _ask(file, now_active, profile)
    values = {"server_url": running.url, "token_id": config.token_id, "token_secret": config.token_secret}
    _write(file, edited(text, profile, values, active=profile if activate else now_active))
    click.echo(f"wrote profile {profile!r} for {running.url} to {file}")
    if not activate:
        kept = f"{now_active!r} stays active" if now_active else "no profile is active"
        click.echo(f"{kept}: MODAL_PROFILE={profile} uses this one once, `modal profile activate {profile}` for good")


def active_profile(profiles: dict[str, Any]) -> str | None:
    """As the client reads it: the one marked active, else the one named "default"."""
    marked = [name for name, values in profiles.items() if values.get("active") is True]
    if marked:
        return marked[0]
    return "default" if "default" in profiles else None


def edited(text: str, profile: str, values: dict[str, str], active: str | None) -> str:
    """The file with this profile in it and this one active; every other line, comments too, as it was.

    A profile must be marked active once there are two: the client refuses to guess.
    """
    out: list[str] = []
    section = None
    found = False
    for line in text.splitlines():
        header = re.match(r"""\s*\[\s*["']?([^\]"']+?)["']?\s*\]""", line)
        key = re.match(r"\s*([A-Za-z0-9_-]+)\s*=", line)
        if header:
            section = header.group(1)
            out.append(line)
            if section == profile:
                found = True
                out += _lines(values)
            if section == active:
                out.append("active = true")
        elif key and (key.group(1) == "active" or (section == profile and key.group(1) in OURS)):
            continue
        else:
            out.append(line)
    if not found:
        out += ([""] if out and out[-1].strip() else []) + [f"[{profile}]", *_lines(values)]
        if active == profile:
            out.append("active = true")
    new = "\n".join(out) + "\n"
    _check(text, new, profile, values, active)
    return new


def _lines(values: dict[str, str]) -> list[str]:
    return [f'{name} = "{value}"' for name, value in values.items()]


def _check(old: str, new: str, profile: str, values: dict[str, str], active: str | None) -> None:
    """What was meant and what a parser reads must be the same: the file may hold TOML that the lines above don't understand."""
    wanted = {name: {k: v for k, v in section.items() if k != "active"} for name, section in tomllib.loads(old).items()}
    wanted[profile] = wanted.get(profile, {}) | values
    if active is not None:
        wanted[active]["active"] = True
    try:
        same = tomllib.loads(new) == wanted
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        lines = "\n".join(["", f"[{profile}]", *_lines(values)])
        raise click.ClickException(f"the client's configuration can't be edited line by line; add this yourself:\n{lines}")


def _parse(file: Path, text: str) -> dict[str, Any]:
    try:
        profiles = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise click.ClickException(f"{file} is not valid TOML ({error}): mend it first, nothing was changed") from error
    if not all(isinstance(values, dict) for values in profiles.values()):
        raise click.ClickException(f"{file} has settings outside of a profile, which the client refuses: mend it first")
    return profiles


def _ask(file: Path, now_active: str | None, profile: str) -> bool:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return click.confirm(f"Profile {now_active!r} is active in {file}. Make {profile!r} the active one?", default=False)


def _write(file: Path, text: str) -> None:
    """Whole or not at all, for its owner only; where it is a link, to what it links to."""
    target = file.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(target.name + ".new")
    draft.touch(mode=0o600)
    draft.write_text(text)
    if target.exists():
        draft.chmod(target.stat().st_mode & 0o777)
    os.replace(draft, target)
